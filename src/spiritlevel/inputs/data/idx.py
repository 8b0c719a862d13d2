"""MNIST, Fashion-MNIST and whatever else comes as idx files, plain or gzipped.

An idx file is two zero bytes, a type byte (8: unsigned bytes), the number of dimensions, each
dimension as a big-endian 32-bit number, then the values.
"""

from __future__ import annotations

import gzip
import math
import os
import pathlib
import struct
import zlib
from typing import Protocol

import torch
from torch import Tensor

from ...ground.errors import SpiritlevelError, brief
from ...ground.files.reading import check_unpacked

NUM_CLASSES = 10
STEMS = {"train": "train", "test": "t10k"}
# Where torchvision and others put the files inside the folder they are told.
SUBFOLDERS = {"mnist": ("MNIST/raw", "raw"), "fashion-mnist": ("FashionMNIST/raw", "raw")}
_UNSIGNED_BYTE = 8
_PIECE = 2**22
_GZIP = b"\x1f\x8b"


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


def read_mnist(
    path: str | os.PathLike[str], split: str = "train", *, name: str = "mnist"
) -> tuple[Tensor, Tensor]:
    """Images (N, 1, height, width) as float32 in [0, 1] and labels as int64.

    `path` is the folder with the four files under their own names. `name` is "mnist" or
    "fashion-mnist": in a folder of torchvision's both lie side by side.
    """
    folder = _folder(pathlib.Path(path), name=name, split=split)
    images_at = _find(folder, f"{STEMS[split]}-images", "idx3-ubyte", name=name)
    labels_at = _find(folder, f"{STEMS[split]}-labels", "idx1-ubyte", name=name)
    images, labels = read_idx(images_at, num_dims=3), read_idx(labels_at, num_dims=1)
    if len(images) != len(labels):
        raise SpiritlevelError(
            f"The files {str(images_at)!r} and {str(labels_at)!r} must be equally long. Got "
            f"{len(images)} images and {len(labels)} labels. Get both from one place."
        )
    if (highest := int(labels.max())) >= NUM_CLASSES:
        raise SpiritlevelError(
            f"The labels in {str(labels_at)!r} must be 0 to {NUM_CLASSES - 1}. Got {highest}. "
            f"The file is damaged or of another data set: `spiritlevel data fetch {name}`."
        )
    return images.float().div_(255).unsqueeze(1), labels.long()


def read_idx(path: str | os.PathLike[str], *, num_dims: int) -> Tensor:
    """The bytes of one idx file with that many dimensions, as a uint8 tensor."""
    name = os.fspath(path)
    try:
        with open(name, "rb") as file:
            is_gzipped = file.read(2) == _GZIP  # by content: files get renamed
            file.seek(0)
            content = gzip.GzipFile(fileobj=file) if is_gzipped else file
            return _parse(content, name=name, num_dims=num_dims, is_packed=is_gzipped)
    except SpiritlevelError:
        raise
    except FileNotFoundError as error:
        raise SpiritlevelError(
            f"The data file {name!r} must exist. There is no such file. Check the path."
        ) from error
    except (OSError, EOFError, zlib.error) as error:
        raise SpiritlevelError(
            f"The data file {name!r} must be readable. Reading its {_size(name)} bytes failed with "
            f"{type(error).__name__}: {error}. It was cut short or is damaged: fetch it again."
        ) from error


def _parse(file: _Readable, *, name: str, num_dims: int, is_packed: bool) -> Tensor:
    header = 4 + 4 * num_dims
    start = file.read(header)
    magic = bytes((0, 0, _UNSIGNED_BYTE, num_dims))
    if start[:4] != magic:
        raise SpiritlevelError(
            f"The data file {name!r} must be an idx file of {num_dims}-dimensional bytes, which "
            f"starts with {magic.hex()}. Got {start[:4].hex() or 'an empty file'}. "
            "Check that images and labels were not swapped and that the file is what its name says."
        )
    if len(start) < header:
        raise _cut_short(name, expected=header, found=len(start))
    shape = struct.unpack(f">{num_dims}I", start[4:])
    if 0 in shape:
        raise SpiritlevelError(
            f"The data file {name!r} must hold at least one row. Got shape {shape}. Fetch it again."
        )
    total = math.prod(shape)
    if is_packed:
        advice = "It is damaged, or not what its name says: fetch it again."
        check_unpacked(name, total, packed=os.path.getsize(name), advice=advice)
    values = _read_at_most(file, total + 1)  # one more than wanted, to see that there is more
    if len(values) != total:
        raise _cut_short(name, expected=header + total, found=header + len(values))
    return torch.frombuffer(values, dtype=torch.uint8).view(shape)


def _read_at_most(file: _Readable, count: int) -> bytearray:
    """Piece by piece, so that memory is taken for what is there, not for what a header promises."""
    values = bytearray()
    while piece := file.read(min(_PIECE, count - len(values))):
        values += piece
    return values


def _cut_short(name: str, *, expected: int, found: int) -> SpiritlevelError:
    came = f"{found} bytes" if found < expected else f"at least {found} bytes"
    return SpiritlevelError(
        f"The data file {name!r} must have {expected} bytes (unpacked), as its header says. "
        f"Got {came}. It is {'cut short' if found < expected else 'damaged'}: fetch it again."
    )


def _size(name: str) -> str:
    try:
        return str(os.path.getsize(name))
    except OSError:
        return "unknown number of"


def _folder(path: pathlib.Path, *, name: str, split: str) -> pathlib.Path:
    """The folder itself, or the one inside it where the files of this data set are."""
    if not path.is_dir():
        came = "a file" if path.exists() else "nothing there"
        raise SpiritlevelError(
            f"The data of {name!r} must be a folder with the idx files. Got {brief(str(path))}: "
            f"{came}. Give the folder, or fetch a copy: `spiritlevel data fetch {name}`."
        )
    for inner in (path, *(path / sub for sub in SUBFOLDERS.get(name, ()))):
        if any(inner.glob(f"{STEMS[split]}-images*")):
            return inner
    return path


def _find(folder: pathlib.Path, stem: str, ending: str, *, name: str) -> pathlib.Path:
    spellings = [f"{stem}{dot}{ending}{packed}" for packed in ("", ".gz") for dot in "-."]
    for spelling in spellings:
        if (folder / spelling).is_file():
            return folder / spelling
    there = ", ".join(sorted(entry.name for entry in folder.iterdir())[:8]) or "nothing"
    raise SpiritlevelError(
        f"The folder {str(folder)!r} must have the file {spellings[0]!r}, or that with '.gz'. "
        f"It has: {there}. Copy it there, or fetch all: `spiritlevel data fetch {name}`."
    )
