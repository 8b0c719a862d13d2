"""Files written completely or not at all, and names from outside that become names of files.

`reading` reads files that may come from anywhere, without running or unpacking what is too much.
"""

from __future__ import annotations

import contextlib
import glob
import os
import pathlib
import re
import stat
import tempfile

from ..errors import SpiritlevelError, brief

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


LONGEST = 200  # bytes; file systems take 255, and endings are added
# Devices of Windows, with any ending; a folder that is copied there could not be opened.
RESERVED = {"con", "prn", "aux", "nul"} | {f"{n}{i}" for n in ("com", "lpt") for i in range(1, 10)}


def check_name(name: str, *, what: str, advice: str) -> str:
    """The name, if it stays inside the folder it is put in; a slash makes a folder in there.

    >>> check_name("digits-quick", what="study's name", advice="")
    'digits-quick'
    """
    first, *rest = name.replace("\\", "/").split("/")
    for part in [first, *filter(None, rest)]:  # an empty part counts only where a path starts
        if fault := _fault(part):
            raise SpiritlevelError(
                f"The {what} must be usable as the name of a folder. Got {brief(name)}, {fault}. "
                f"{advice}"
            )
    return name


def portable(name: str) -> str:
    """A checked name as one that Windows can write too; most stay as they are.

    >>> portable("A: baseline?"), portable("digits-quick"), portable("runs. /b")
    ('A_ baseline_', 'digits-quick', 'runs/b')
    """
    parts = re.sub(r'[<>:"|?*]', "_", name).replace("\\", "/").split("/")
    return "/".join(part.rstrip(". ") for part in parts)


def as_path(given: object, *, what: str) -> pathlib.Path:
    """A path that the system can be asked for."""
    if not isinstance(given, str | os.PathLike) or not isinstance(os.fspath(given), str):
        raise SpiritlevelError(
            f"The {what} must be a path. Got {brief(given)}. Give a text, or a pathlib.Path."
        )
    path = pathlib.Path(given)
    try:
        parts = [os.fsencode(part) for part in path.parts]
    except UnicodeEncodeError:  # half of a character
        parts = [b"\0"]
    if not os.fspath(given) or any(b"\0" in part or len(part) > 255 for part in parts):
        raise SpiritlevelError(
            f"The {what} must be a path. Got {brief(os.fspath(given))}, which no file can have. "
            "Check it."
        )
    return path


def is_path(given: object) -> bool:
    """Whether it is a path that the system can be asked for."""
    try:
        as_path(given, what="path")
    except SpiritlevelError:
        return False
    return True


def natural(name: str) -> list[tuple[int, int, str]]:
    """A key that sorts layer2 before layer10.

    >>> sorted(["run10", "run2"], key=natural)
    ['run2', 'run10']
    """
    parts = re.findall(r"\d+|\D+", name)
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts]


def _fault(part: str) -> str:
    if not part.strip(". "):
        return "which leads out of its folder"
    if not part.isprintable():
        return "which has characters that cannot be printed"
    if len(part.encode("utf-8", "surrogatepass")) > LONGEST:
        return f"which is longer than {LONGEST} bytes"
    if part.partition(".")[0].strip().lower() in RESERVED:
        return "which Windows reserves for a device"
    if re.match(r"[A-Za-z]:(\S|$)", part):
        return "which names a drive of Windows"
    return ""
