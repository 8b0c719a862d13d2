"""How much a compressed file may unpack to: a small file must not fill the memory."""

from __future__ import annotations

import os
from typing import IO

from ..errors import SpiritlevelError

ALWAYS = 2**29  # bytes that any file may unpack to
# Images, labels and token ids shrink 2 to 20 times, sparse tables up to 100 times. A file that is
# made to fill the memory shrinks 1,000 times.
MOST_TIMES = 100


def check_unpacked(name: str, unpacked: int, *, packed: int, advice: str) -> None:
    """Refuse before unpacking what would unpack to more than any honest file of its size."""
    most = max_unpacked(packed)
    if unpacked > most:
        raise SpiritlevelError(
            f"The file {name!r} must unpack to at most {most:,} bytes, as it has {packed:,} bytes "
            f"itself. It would unpack to {unpacked:,} bytes or more, and was not unpacked. {advice}"
        )


def max_unpacked(packed: int) -> int:
    """The most bytes that a file of `packed` bytes may unpack to.

    >>> max_unpacked(1000) == ALWAYS, max_unpacked(10**9)
    (True, 100000000000)
    """
    return max(ALWAYS, MOST_TIMES * packed)


class CountedReader:
    """A stream that is refused as soon as it gives more bytes than `check_unpacked` allows."""

    def __init__(self, stream: IO[bytes], name: str, *, advice: str) -> None:
        self._stream, self._name, self._advice = stream, name, advice
        self._packed = os.path.getsize(name)
        self._count = 0

    def read(self, size: int) -> bytes:
        """At most `size` bytes; never more than one byte beyond what is allowed."""
        left = max_unpacked(self._packed) - self._count
        data = self._stream.read(min(size, left + 1))
        self._count += len(data)
        check_unpacked(self._name, self._count, packed=self._packed, advice=self._advice)
        return data
