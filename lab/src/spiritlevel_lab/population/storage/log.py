"""SQLite's write-ahead log, looked at before SQLite does.

SQLite ends its reading of the log, without a word, where a checksum is wrong. After a crash that is
the transaction that was cut off. But where a byte has changed, it is all that was stored after it.
"""

from __future__ import annotations

import functools
import operator
import pathlib
import struct
import time

HEADING, FRAME = 32, 24  # bytes
MAGIC = 0x377F0682  # with little-endian checksums; one more: big-endian
OLDER = 2**20  # logs that were begun before this one, whose frames may still stand behind its own
MASK = 2**32 - 1
TRIES, PAUSE = 5, 0.1  # a process may be writing a frame right now
State = tuple[int, int]  # of the checksum


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
