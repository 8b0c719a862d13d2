"""CIFAR-10 and CIFAR-100, from the binary version or the python pickles, unpacked or as downloaded.

Binary: one record an image, its label (CIFAR-100: group, then class) and 3,072 bytes, red, green
and blue one after the other. Pickles hold the same as an array and a list. Archives are read where
they lie; nothing is extracted.

A pickle is a program: it may call whatever it can import. Here every import is answered with a
stand-in of our own that only notes what it was given, or it is refused. Not even numpy runs.
"""

from __future__ import annotations

import bz2
import dataclasses
import gzip
import io
import lzma
import math
import os
import pathlib
import pickle
import posixpath
import tarfile
from collections.abc import Collection, Mapping
from typing import IO, Any, cast

import torch
from torch import Tensor

from ...ground.errors import SpiritlevelError
from ...ground.files.reading import CountedReader
from ...ground.need import need, one_of
from .catalogue import published_size

PIXELS = 3 * 32 * 32
MAX_BYTES = 2**29  # of one file: far above any of the catalogue, far below a full memory


@dataclasses.dataclass(frozen=True)
class _Kind:
    name: str
    splits: Mapping[str, tuple[str, ...]]  # file names, without the ending of the binary version
    rows: Mapping[str, int]  # in each of those files, as published
    classes: Mapping[str, int]  # by what is labelled, in the order of the label bytes
    keys: Mapping[str, str]  # under which a pickle has them
    folders: tuple[str, str]  # binary, pickles
    archives: tuple[str, str]


KINDS = {
    "cifar10": _Kind(
        "cifar10",
        {"train": tuple(f"data_batch_{i}" for i in range(1, 6)), "test": ("test_batch",)},
        {"train": 10_000, "test": 10_000},
        {"fine": 10},
        {"fine": "labels"},
        ("cifar-10-batches-bin", "cifar-10-batches-py"),
        ("cifar-10-binary.tar.gz", "cifar-10-python.tar.gz"),
    ),
    "cifar100": _Kind(
        "cifar100",
        {"train": ("train",), "test": ("test",)},
        {"train": 50_000, "test": 10_000},
        {"coarse": 20, "fine": 100},
        {"coarse": "coarse_labels", "fine": "fine_labels"},
        ("cifar-100-binary", "cifar-100-python"),
        ("cifar-100-binary.tar.gz", "cifar-100-python.tar.gz"),
    ),
}


def read_cifar(
    path: str | os.PathLike[str],
    split: str = "train",
    *,
    name: str = "cifar10",
    labels: str = "fine",
    whole: bool = True,
) -> tuple[Tensor, Tensor]:
    """Images (N, 3, 32, 32) as float32 in [0, 1] and labels as int64.

    `path` is the .tar.gz as downloaded, or a folder with it, or one with the files. Where both
    versions are there the binary one is read. `labels="coarse"` gives the 20 groups of CIFAR-100.
    `whole=False` takes files with another number of images than was published.
    """
    kind = KINDS[name]
    wanted = f"{' or '.join(map(repr, kind.classes))} for {name}"
    then = "Groups of classes ('coarse') exist in cifar100."
    need("labels", labels, one_of(kind.classes), wanted, then, of="read_cifar")
    place, files, is_binary = _find(pathlib.Path(path), kind, split)
    rows = kind.rows[split] if whole else None
    pixels, targets = [], []
    for file, content in files.items():
        at = where(place, file)
        read = _from_records if is_binary else _from_pickle
        images, classes = read(content, at=at, kind=kind, labels=labels, rows=rows)
        if (highest := int(classes.max())) >= (count := kind.classes[labels]):
            raise SpiritlevelError(
                f"The labels in {at} must be 0 to {count - 1}. Got {highest}. The file is damaged "
                "or of another data set: check which it is, or fetch it again."
            )
        pixels.append(images)
        targets.append(classes)
    images = torch.cat(pixels).view(-1, 3, 32, 32)
    return images.float().div_(255), torch.cat(targets).long()


def _find(
    path: pathlib.Path, kind: _Kind, split: str
) -> tuple[pathlib.Path, dict[str, bytes], bool]:
    """Where the files are, what is in them, and whether they are the binary version."""
    if not path.exists():
        raise SpiritlevelError(
            f"The data of {kind.name!r} must be a folder or a .tar.gz. There is no {str(path)!r}. "
            f"Check the path, or fetch a copy: `spiritlevel data fetch {kind.name}`."
        )
    binary = [f"{stem}.bin" for stem in kind.splits[split]]
    pickles = list(kind.splits[split])
    places = [path]
    if path.is_dir():
        places += [path / inner for inner in (*kind.folders, *kind.archives)]
    incomplete = ""
    for place in filter(pathlib.Path.exists, places):
        members = read_members(place, {*binary, *pickles})
        for names in (binary, pickles):
            if all(name in members for name in names):
                return place, {name: members[name] for name in names}, names is binary
            missing = [name for name in names if name not in members]
            if len(missing) < len(names):
                incomplete = incomplete or f"{str(place)!r} lacks {', '.join(missing)}"
    raise SpiritlevelError(
        f"The data of {kind.name!r} must be {kind.archives[0]}, {kind.archives[1]} or all files "
        f"from one of them ({binary[0]} or {pickles[0]}, ...). "
        f"{incomplete or f'{str(path)!r} has none of these'}. "
        f"Check the path, or fetch a copy: `spiritlevel data fetch {kind.name}`."
    )


def _from_records(
    content: bytes, *, at: str, kind: _Kind, labels: str, rows: int | None
) -> tuple[Tensor, Tensor]:
    record = len(kind.classes) + PIXELS
    expected = rows * record if rows else None
    if not content or len(content) % record or (expected and len(content) != expected):
        need = f"{expected}" if expected else f"a multiple of {record}"
        raise SpiritlevelError(
            f"The data file {at} must have {need} bytes. Got {len(content)}. "
            "It is cut short or damaged: fetch it again."
            + (" Files with fewer images are read with whole=False." if rows else "")
        )
    table = torch.frombuffer(bytearray(content), dtype=torch.uint8).view(-1, record)
    return table[:, len(kind.classes) :], table[:, list(kind.classes).index(labels)]


def _from_pickle(
    content: bytes, *, at: str, kind: _Kind, labels: str, rows: int | None
) -> tuple[Tensor, Tensor]:
    try:
        unpickled = unpickle(content)
    except pickle.UnpicklingError as error:
        raise SpiritlevelError(
            f"The data file {at} must be a pickle of arrays, lists and text. It was refused, "
            f"and nothing in it was run: it holds {error}, in {len(content)} bytes. "
            f"Fetch it again, or take the binary version: `spiritlevel data fetch {kind.name}`."
        ) from error
    parts = {}
    if isinstance(unpickled, dict):
        parts = {k.decode("latin1") if isinstance(k, bytes) else k: v for k, v in unpickled.items()}
    array, targets = parts.get("data"), parts.get(kind.keys[labels])
    if not isinstance(array, PickledArray) or not isinstance(targets, list):
        there = ", ".join(f"{k!r} ({type(v).__name__})" for k, v in parts.items())
        raise SpiritlevelError(
            f"The data file {at} must be a dict with the array 'data' and the list "
            f"{kind.keys[labels]!r}. Got "
            f"{f'one with {there}' if parts else type(unpickled).__name__}. "
            f"Check that it belongs to {kind.name}."
        )
    count = len(targets)
    if (
        array.dtype != "u1"
        or array.shape != (count, PIXELS)
        or (rows and count != rows)
        or not count
    ):
        raise SpiritlevelError(
            f"The array 'data' of {at} must be {rows or count or 'some'} rows of {PIXELS} bytes, "
            f"with a label each. Got shape {array.shape} of type {array.dtype!r} and {count} "
            "labels. It is cut short or damaged: fetch it again."
        )
    if not all(type(target) is int and 0 <= target < 256 for target in targets):
        raise SpiritlevelError(
            f"The list {kind.keys[labels]!r} of {at} must hold integers from 0 to "
            f"{kind.classes[labels] - 1}. Got others. Fetch the file again."
        )
    flat = torch.frombuffer(bytearray(array.data), dtype=torch.uint8)
    table = flat.view(PIXELS, count).t() if array.is_fortran else flat.view(count, PIXELS)
    return table.contiguous(), torch.tensor(targets, dtype=torch.uint8)


def read_members(place: pathlib.Path, names: Collection[str]) -> dict[str, bytes]:
    """The bytes of those of the named files that are in the folder or archive.

    In an archive folders do not count, nor does anything but regular files.
    """
    if place.is_dir():
        return {name: _read_file(place / name) for name in names if (place / name).is_file()}
    try:
        with _unpacked(place) as stream:
            advice = "It cannot be what its name says: fetch it again."
            counted = CountedReader(stream, str(place), advice=advice)
            # As a stream: nothing is read twice, and every byte is counted, headings too.
            with tarfile.open(fileobj=counted, mode="r|") as archive:  # type: ignore[call-overload]
                return _read_archive(archive, place, names)
    except SpiritlevelError:
        raise
    except Exception as error:  # damaged archives raise nearly anything
        size, published = place.stat().st_size, published_size(place.name)
        expected = f" of {published} bytes, as published" if published else ""
        raise SpiritlevelError(
            f"The data file {str(place)!r} must be a whole tar archive{expected}. Got {size} "
            f"bytes, and reading them failed with {type(error).__name__}: {error}. "
            "It is cut short or damaged: fetch it again."
        ) from error


def _unpacked(place: pathlib.Path) -> IO[bytes]:
    """The file without its compression, which is known by its first bytes."""
    with open(place, "rb") as file:
        start = file.read(6)
    if start.startswith(b"\x1f\x8b"):
        return cast(IO[bytes], gzip.open(place))
    if start.startswith(b"BZh"):
        return cast(IO[bytes], bz2.open(place))
    if start.startswith(b"\xfd7zXZ\0"):
        return cast(IO[bytes], lzma.open(place))
    return open(place, "rb")


def where(place: pathlib.Path, name: str) -> str:
    """Which file, in which folder or archive, for error texts."""
    return repr(str(place / name)) if place.is_dir() else f"{name!r} in {str(place)!r}"


def _read_archive(
    archive: tarfile.TarFile, place: pathlib.Path, names: Collection[str]
) -> dict[str, bytes]:
    contents: dict[str, bytes] = {}
    for member in archive:
        name = posixpath.basename(member.name)
        if member.isreg() and name in names:
            _check_size(where(place, name), member.size)
            content = archive.extractfile(member)
            assert content is not None  # it is a regular file
            contents[name] = content.read()
    return contents


def _read_file(path: pathlib.Path) -> bytes:
    try:
        _check_size(repr(str(path)), path.stat().st_size)
        return path.read_bytes()
    except OSError as error:
        raise SpiritlevelError(
            f"The data file {str(path)!r} cannot be read: {error.strerror or error}. "
            "Check its permissions."
        ) from error


def _check_size(file: str, size: int) -> None:
    if size > MAX_BYTES:
        raise SpiritlevelError(
            f"The data file {file} must have at most {MAX_BYTES} bytes. Got {size}. "
            "It cannot be what its name says: fetch it again."
        )


_ARRAY_MODULES = ("numpy.core.multiarray", "numpy._core.multiarray")
_BUFFER_MODULES = ("numpy.core.numeric", "numpy._core.numeric")


class PickledArray:
    """Shape, type and bytes of an array that a pickle describes."""

    __slots__ = ("data", "dtype", "is_fortran", "shape")

    def __init__(self) -> None:
        self.shape: tuple[int, ...] = ()
        self.dtype = ""
        self.is_fortran = False
        self.data = b""

    def __setstate__(self, state: Any) -> None:
        """What numpy's own arrays are given: version, shape, type, order and bytes."""
        _version, shape, dtype, is_fortran, data = state
        self.fill(shape, dtype, bool(is_fortran), data)

    def fill(self, shape: Any, dtype: Any, is_fortran: bool, data: Any) -> None:
        """Note the parts, once they are of the right types and fit each other."""
        is_shape = isinstance(shape, tuple) and all(type(n) is int and n >= 0 for n in shape)
        if not (is_shape and isinstance(dtype, _Dtype) and isinstance(data, bytes | bytearray)):
            raise pickle.UnpicklingError("an array whose parts are not shape, type and bytes")
        if dtype.code == "u1" and len(data) != math.prod(shape):
            raise pickle.UnpicklingError(f"an array of shape {shape} with {len(data)} bytes")
        self.shape, self.dtype, self.is_fortran = shape, dtype.code, is_fortran
        self.data = bytes(data)


class _Inert:
    """A stand-in that pickles cannot change."""

    __slots__ = ()

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("an attempt to change a function")


class _Dtype:
    __slots__ = ("code",)

    def __init__(self, code: str) -> None:
        self.code = code

    def __setstate__(self, state: Any) -> None:
        """Ignore byte order and the like, which mean nothing for single bytes."""


class _MakeDtype(_Inert):
    def __call__(self, code: Any, *_flags: Any) -> _Dtype:
        return _Dtype(code.decode("ascii") if isinstance(code, bytes) else str(code))


class _ArrayType(_Inert):
    """The class that every pickled array names; it is never called."""


class _Reconstruct(_Inert):
    def __call__(self, *_args: Any) -> PickledArray:
        return PickledArray()


class _FromBuffer(_Inert):
    def __call__(self, data: Any, dtype: Any, shape: Any, order: Any) -> PickledArray:
        array = PickledArray()
        array.fill(shape, dtype, order == "F", data)
        return array


class _Encode(_Inert):
    """How Python 3 writes bytes for Python 2."""

    def __call__(self, text: Any, encoding: Any) -> bytes:
        if not (isinstance(text, str) and encoding in ("latin1", b"latin1")):
            raise pickle.UnpicklingError(f"text in the encoding {encoding!r}")
        return text.encode("latin1")


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """A stand-in for what arrays and bytes need; anything else is refused."""
        if (module, name) == ("numpy", "dtype"):
            return _MakeDtype()
        if (module, name) == ("numpy", "ndarray"):
            return _ArrayType()
        if (module, name) == ("_codecs", "encode"):
            return _Encode()
        if module in _ARRAY_MODULES and name == "_reconstruct":
            return _Reconstruct()
        if module in _BUFFER_MODULES and name == "_frombuffer":
            return _FromBuffer()
        raise pickle.UnpicklingError(f"a call of {module}.{name}")


def unpickle(data: bytes) -> object:
    """Dicts, lists, numbers, text, bytes and arrays; pickle.UnpicklingError for anything else.

    Text that Python 2 wrote comes as bytes.
    """
    try:
        return _Unpickler(io.BytesIO(data), encoding="bytes").load()
    except pickle.UnpicklingError:
        raise
    except Exception as error:  # damaged pickles raise nearly anything
        text = f"{type(error).__name__}: {error}"
        raise pickle.UnpicklingError(f"what cannot be unpickled ({text})") from error
