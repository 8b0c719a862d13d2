"""Finished points in a file, one JSON line each, so that an interrupted slice goes on.

The first line says what the points belong to. A point is found by its coordinates: a finer or wider
grid along the same directions takes over what it shares with the earlier one. Weights and data are
recognized by their fingerprints.
"""

from __future__ import annotations

import ctypes
import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from ...ground.errors import SpiritlevelError, brief
from ...ground.files import write_atomically
from ...model import batches as _batches
from ...model.surface import Surface
from ...records.reading import to_json_float

FORMAT = "spiritlevel-landscape-cache-1"
SIZE = 16  # bytes of a fingerprint

Point = tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class Height:
    """Mean loss, and the share of missed targets where the loss is a cross-entropy."""

    loss: float
    error: float | None


class Cache:
    """The file at `path`, for points that belong to `key`."""

    def __init__(self, path: str | os.PathLike[str], key: Mapping[str, Any]) -> None:
        self.path, self.key = os.fspath(path), dict(key)

    def read(self) -> dict[Point, Height]:
        """The finished points in the file; a new file is created if there is none."""
        try:
            with open(self.path, "rb") as file:
                content = file.read()
        except FileNotFoundError:
            content = b""
        except OSError as error:
            raise self._refusal(f"it cannot be read: {error.strerror}") from error
        *lines, torn = content.split(b"\n")
        if not lines and not torn:
            heading = json.dumps({"format": FORMAT, "key": self.key}, allow_nan=False)
            write_atomically(self.path, f"{heading}\n".encode())
            return {}
        self._check_heading(lines[0] if lines else torn)
        heights = dict(self._point(line) for line in lines[1:])
        if torn:  # the writer was killed in the middle of a line
            write_atomically(self.path, b"".join(line + b"\n" for line in lines))
        return heights

    def add(self, points: Sequence[Point], heights: Sequence[Height]) -> None:
        """Append finished points to the file, in one write."""
        rows = zip(points, heights, strict=True)
        lines = [
            json.dumps(
                {
                    "at": list(at),
                    "loss": to_json_float(height.loss),
                    "error": None if height.error is None else to_json_float(height.error),
                },
                allow_nan=False,
            )
            for at, height in rows
        ]
        try:
            with open(self.path, "ab") as file:
                file.write("".join(f"{line}\n" for line in lines).encode())
        except OSError as error:
            raise self._refusal(f"it cannot be written: {error.strerror}") from error

    def _check_heading(self, line: bytes) -> None:
        try:
            heading = json.loads(line)
            theirs = heading["key"] if heading["format"] == FORMAT else None
        except (ValueError, KeyError, TypeError):
            theirs = None
        if not isinstance(theirs, dict):
            raise self._refusal("it exists and is not such a cache")
        ours = json.loads(json.dumps(self.key))  # tuples become lists in the file
        other = [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]
        if other:
            told = ", ".join(
                f"{name} {brief(theirs.get(name))} there, {brief(ours.get(name))} here"
                for name in other
            )
            raise self._refusal(f"its points belong to another slice ({told})")

    def _point(self, line: bytes) -> tuple[Point, Height]:
        try:
            row = json.loads(line)
            error = None if row["error"] is None else float(row["error"])
            return tuple(map(float, row["at"])), Height(float(row["loss"]), error)
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise self._refusal("a line in the middle of it is damaged") from error

    def _refusal(self, cause: str) -> SpiritlevelError:
        return SpiritlevelError(
            f"The cache {self.path!r} cannot be used: {cause}. Give another path, or delete the "
            "file to start again."
        )


def of_tensors(tensors: Mapping[str, Tensor]) -> str:
    """A fingerprint of the names, types, shapes and every bit."""
    digest = hashlib.blake2b(digest_size=SIZE)
    for name, tensor in tensors.items():
        _feed(digest, name, tensor)
    return digest.hexdigest()


def of_data(surface: Surface) -> str:
    """A fingerprint of all samples of all processes, the same in any order."""
    total = 0
    for _, batch in surface.batches():
        on_cpu = _batches.map_tensors(lambda t: t.detach().cpu(), batch)
        for i in range(_batches.num_samples(on_cpu)):
            digest = hashlib.blake2b(digest_size=SIZE)
            for tensor in _batches.tensors(_batches.take(on_cpu, slice(i, i + 1))):
                _feed(digest, "", tensor)
            total += int.from_bytes(digest.digest(), "big")
    total = sum(surface.processes.gather(total))
    return (total % (1 << 8 * SIZE)).to_bytes(SIZE, "big").hex()


def _feed(digest: hashlib.blake2b, name: str, tensor: Tensor) -> None:
    tensor = tensor.detach().cpu().contiguous()
    digest.update(f"{name}/{tensor.dtype}/{tuple(tensor.shape)}/".encode())
    num_bytes = tensor.numel() * tensor.element_size()
    if num_bytes:  # read where it lies: numpy is not a dependency of the core
        digest.update((ctypes.c_char * num_bytes).from_address(tensor.data_ptr()))
