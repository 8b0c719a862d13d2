"""Stores that would lose something, or damage something else, if work on them went on.

SQLite ends its reading of the write-ahead log, without a word, where a checksum is wrong. After a
crash that is the transaction that was cut off. But where a byte has changed, it is all that was
stored after it. So the log is looked at before SQLite does.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import pathlib
import sqlite3
import struct
import time
from collections.abc import Iterator

from spiritlevel.ground.errors import SpiritlevelError

from .copies import files_of, linked
from .database import DATABASE, damaged

HEADING, FRAME = 32, 24  # bytes
MAGIC = 0x377F0682  # with little-endian checksums; one more: big-endian
OLDER = 2**20  # logs that were begun before this one, whose frames may still stand behind its own
MASK = 2**32 - 1
TRIES, PAUSE = 5, 0.1  # a process may be writing a frame right now
State = tuple[int, int]  # of the checksum

CHECKPOINTS = "checkpoints"


def refuse_loss(folder: pathlib.Path) -> None:
    """Raise if the database is gone and weights are there, or if SQLite would skip rows of it."""
    database, log, _ = files_of(folder)
    lost = not database.is_file() or database.stat().st_size == 0
    if lost and _weights(folder):
        raise damaged(folder, "it is missing or empty, and there are weights of its runs")
    if log_is_damaged(log):
        raise damaged(folder, f"bytes of its log {log.name!r} have changed")


def refuse_without_log(connection: sqlite3.Connection, folder: pathlib.Path, version: int) -> None:
    """Raise if there are weights of runs that the database knows nothing of."""
    weights = _weights(folder)  # first: another process may begin a run meanwhile
    if version == 0 and weights:
        raise _log_is_lost(folder, len(weights))
    if weights:
        waiting = connection.execute("SELECT id FROM runs WHERE attempt = 0")
        if lost := weights & {id_ for [id_] in waiting}:
            raise _log_is_lost(folder, len(lost))


def refuse_links(folder: pathlib.Path) -> None:
    """Raise if writing the database would write into files elsewhere."""
    if links := linked(folder):
        raise SpiritlevelError(
            f"The study's store in {str(folder)!r} may be read, but not written: "
            f"{str(links[0])!r} is a link, or has a second name elsewhere, and what it leads to "
            "may belong to something else. Make a copy that follows links (cp -rL) and go on with "
            "that."
        )


@contextlib.contextmanager
def started_again(folder: pathlib.Path) -> Iterator[None]:
    """Where a study that has no runs yet cannot be made, say so: there is nothing to resume."""
    try:
        yield
    except SpiritlevelError as error:
        if not isinstance(error.__cause__, sqlite3.OperationalError) or _has_runs(folder):
            raise
        raise SpiritlevelError(
            f"The study could not be started in {str(folder)!r}: {error.__cause__}. Nothing is "
            "lost. Make room on the disk, check that you may write there, and give the same "
            "command again."
        ) from error


def _has_runs(folder: pathlib.Path) -> bool:
    with contextlib.closing(sqlite3.connect(folder / DATABASE)) as connection:
        try:
            return bool(connection.execute("SELECT count(*) FROM runs").fetchone()[0])
        except sqlite3.Error:
            return False


def _weights(folder: pathlib.Path) -> set[str]:
    return {path.stem for path in (folder / CHECKPOINTS).glob("*.safetensors")}


def _log_is_lost(folder: pathlib.Path, count: int) -> SpiritlevelError:
    return damaged(
        folder,
        f"there are weights of {count} runs that it knows nothing of, so its newest rows are "
        f"missing. They were in its log {DATABASE}-wal, which was not copied with it, or deleted. "
        "Put that file back beside it, or copy the store once more while nobody writes to it",
    )


def log_is_damaged(path: pathlib.Path) -> bool:
    """Whether bytes of the log have changed, so that stored transactions would be left out."""
    for attempt in range(TRIES):
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return False
        if not _is_damaged(content):
            return False
        if attempt < TRIES - 1:
            time.sleep(PAUSE)
    return True


def _is_damaged(content: bytes) -> bool:
    if len(content) < HEADING:  # cut off while it was begun
        return False
    magic, _, size, _, salt, _, *checksum = struct.unpack(">8I", content[:HEADING])
    if magic not in (MAGIC, MAGIC + 1):
        return any(content)
    order = "<>"[magic - MAGIC]
    state = _checksum(content[: HEADING - 8], (0, 0), order)
    if list(state) != checksum:
        return True
    salts = content[16:24]
    starts = range(HEADING, len(content) - (FRAME + size) + 1, FRAME + size)
    for start in starts:
        frame = content[start : start + FRAME + size]
        its_salts, its_state = frame[8:16], struct.unpack(">2I", frame[16:FRAME])
        state = _checksum(frame[:8] + frame[FRAME:], state, order)
        if its_salts != salts and 0 < (salt - int.from_bytes(frame[8:12], "big")) & MASK < OLDER:
            return False  # left from before the log was begun anew
        if its_salts != salts or state != its_state:
            # A stored transaction ends in a frame that says so. One that found no room has none.
            return any(
                any(content[each + 4 : each + 8])
                for each in starts
                if each == start or (each > start and content[each + 8 : each + 16] == salts)
            )
    return False


def _checksum(content: bytes, state: State, order: str) -> State:
    """SQLite's: each word is added to the sum of the two numbers before it, by turns."""
    count = len(content) // 4
    words, weights = struct.unpack(f"{order}{count}I", content), _fibonacci(count + 2)
    first, second = (
        sum(map(operator.mul, words, weights[n::-1]))
        + weights[n] * state[0]
        + weights[n + 1] * state[1]
        for n in (count - 1, count)
    )
    return first & MASK, second & MASK


@functools.cache
def _fibonacci(count: int) -> list[int]:
    numbers = [0, 1]
    while len(numbers) < count:
        numbers.append((numbers[-1] + numbers[-2]) & MASK)
    return numbers
