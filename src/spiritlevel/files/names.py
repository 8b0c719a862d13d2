"""Names from outside that become names of files and folders."""

from __future__ import annotations

import os
import pathlib
import re

from ..errors import SpiritlevelError, brief

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
