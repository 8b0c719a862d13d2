"""Files that may come from anywhere: no code in them runs, and none of them fills the memory.

This is the one place where files of torch.save are read: tensors only, and by a torch that is safe.
Reading with weights_only=True was meant to run nothing. Two flaws let a prepared file run code all
the same: GHSA-53q9-r3pm-6pq6, up to torch 2.5.1, and GHSA-63cw-57p8-fm3p, up to torch 2.9.1.
"""

from __future__ import annotations

import os
import zipfile
from typing import IO

import torch
from torch.torch_version import TorchVersion

from ..errors import SpiritlevelError

SAFE = "2.10.0"  # the first torch without the two flaws
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


def load_torch_file(file: IO[bytes], *, what: str) -> object:
    """What torch.save wrote, if it is tensors in containers; `what` names the file in errors."""
    check_torch(torch.__version__, what=what)
    _check_size(file, what)
    return torch.load(file, map_location="cpu", weights_only=True)


def check_torch(version: str, *, what: str) -> None:
    """Refuse a version of torch that a prepared file can make run code.

    >>> check_torch("2.10.0+cu128", what="'a.pt'")
    """
    if TorchVersion(version) < SAFE:
        raise SpiritlevelError(
            f"The file {what} was written by torch.save, and reading such files with torch "
            f"{version} can run code that somebody hid in them (GHSA-53q9-r3pm-6pq6, "
            f"GHSA-63cw-57p8-fm3p). Needed is torch {SAFE} or newer: pip install -U torch. Or give "
            "the weights as .safetensors, which holds no code: "
            "safetensors.torch.save_file(model.state_dict(), 'weights.safetensors')."
        )


def _check_size(file: IO[bytes], what: str) -> None:
    """Before reading: torch.save does not compress, but its reader unpacks what is compressed."""
    start = file.read(2)
    if start == b"PK":
        size = file.seek(0, os.SEEK_END)
        with zipfile.ZipFile(file) as archive:
            unpacked = sum(member.file_size for member in archive.infolist())
        advice = "Save the weights again with torch.save, which does not compress."
        check_unpacked(what, unpacked, packed=size, advice=advice)
    file.seek(0)
