"""Files that are written completely or not at all."""

from __future__ import annotations

import contextlib
import glob
import os
import pathlib
import stat
import tempfile

from ..errors import SpiritlevelError
from .names import as_path

RANDOM = "[a-z0-9_]" * 8  # what `tempfile` puts behind the beginning of a name


def write_atomically(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file so that a reader sees all of it or what was there before."""
    target = as_path(path, what="file to write")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    except OSError as error:
        raise _unwritable(path, error) from error
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(temporary, 0o666 & ~_umask())  # mkstemp gives 0600, a plain open would not
        os.replace(temporary, target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, OSError):
            raise _unwritable(path, error) from error
        raise


def remove_leftovers(path: str | os.PathLike[str]) -> None:
    """Delete what processes left that were killed while they wrote `path`."""
    target = pathlib.Path(path)
    own_folder(target.parent.parent, target.parent.name)
    for leftover in target.parent.glob(f".{glob.escape(target.name)}.{RANDOM}"):
        if is_plain(leftover):
            leftover.unlink(missing_ok=True)


def own_folder(folder: pathlib.Path, name: str) -> pathlib.Path:
    """The folder of this name in a folder of ours; a link, which leads to other files, is refused.

    A folder that was received may hold links, and whatever is written or deleted through one is not
    ours.
    """
    path = folder / name
    if path.is_symlink():
        raise SpiritlevelError(
            f"The folder {str(path)!r} must be a folder. It is a link to {os.readlink(path)!r}, "
            "where nothing is written or deleted. Remove the link, or put a folder in its place."
        )
    return path


def is_plain(path: pathlib.Path) -> bool:
    """Whether a file is there that has no other name: neither a link nor a second name of one."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_nlink == 1


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _unwritable(path: str | os.PathLike[str], error: OSError) -> SpiritlevelError:
    return SpiritlevelError(
        f"The file {os.fspath(path)!r} cannot be written: {error.strerror or error}. "
        "Choose another path, or make room and set permissions there."
    )
