"""Who works on a run: a name that says whether that process still lives."""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import platform
import uuid


def new_worker() -> str:
    """A name no other worker has: where, which process, when it began, and a random part."""
    pid = os.getpid()
    return f"{_here()}|{pid}|{_birth(pid)}|{uuid.uuid4().hex[:8]}"


def is_dead(worker: str) -> bool:
    """Whether the worker's process is surely gone; of another machine nobody here can tell."""
    where, pid, birth, _ = worker.rsplit("|", 3)
    if where != _here() or os.name == "nt":  # on Windows the question below ends the process
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    # A process number is used again: the one that has it now may have begun later. One that has
    # ended and that its parent has not yet asked about is dead too.
    now = _birth(int(pid))
    return bool(birth and now) and now != birth


@functools.cache
def _here() -> str:
    """This machine since it was started; a container has processes of its own."""
    parts = [platform.node()]
    with contextlib.suppress(OSError):
        parts.append(pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8])
    with contextlib.suppress(OSError):
        parts.append(os.readlink("/proc/self/ns/pid"))
    return "/".join(parts)


def _birth(pid: int) -> str:
    """When the process began, "ended" for one that only waits to be counted; "" if unknown."""
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    fields = text.rpartition(")")[2].split()  # the command's name may hold blanks
    return "ended" if fields[0] in "ZX" else fields[19]
