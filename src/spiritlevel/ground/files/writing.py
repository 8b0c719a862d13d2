"""Files that are written completely or not at all."""

from __future__ import annotations

import contextlib
import glob
import os
import pathlib
import tempfile

from ..errors import SpiritlevelError
from .names import as_path


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
    for leftover in target.parent.glob(f".{glob.escape(target.name)}.*"):
        leftover.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _unwritable(path: str | os.PathLike[str], error: OSError) -> SpiritlevelError:
    return SpiritlevelError(
        f"The file {os.fspath(path)!r} cannot be written: {error.strerror or error}. "
        "Choose another path, or make room and set permissions there."
    )
