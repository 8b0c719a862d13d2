"""A user's own data: an .npz file with the arrays `x` and `y`, or such a pair for each split."""

from __future__ import annotations

import math
import os
import zipfile
from typing import IO, Any

import torch
from torch import Tensor

from ...ground.errors import SpiritlevelError, brief, require
from ...ground.files import as_path
from ...ground.files.reading import check_unpacked

_KINDS = {
    "x": "uint8 images, floats, or signed integers (token ids)",
    "y": "integers (class labels) or floats",
}
_NPY, _MAGIC = ".npy", b"\x93NUMPY"  # of one array: the ending of its name, and its first bytes


def read_npz(path: str | os.PathLike[str], split: str = "train") -> tuple[Tensor, Tensor]:
    """Inputs and targets from an .npz file, checked.

    The file has the arrays `x` and `y`, one whole set, of which "train" and "all" both mean
    everything; or `x_train`, `y_train`, `x_test` and `y_test`, of which "all" is both.

    uint8 images become float32 in [0, 1], floats float32, labels and token ids int64; shapes stay.
    Nothing in the file is ever unpickled.
    """
    numpy = require("numpy", what="Reading .npz files", extra="cli")
    name = os.fspath(as_path(path, what="data file"))
    pairs = []
    for raw in _read(numpy, name, split):
        (x_key, x), (y_key, y) = (
            (key, _convert(numpy, array, key=key, name=name)) for key, array in raw.items()
        )
        if len(x) != len(y):
            raise SpiritlevelError(
                f"The arrays {x_key} and {y_key} of {name!r} must be equally long. Got {len(x)} "
                f"and {len(y)} rows. Save one target for each input."
            )
        pairs.append((x, y))
    return _joined(pairs, name)


def _joined(pairs: list[tuple[Tensor, Tensor]], name: str) -> tuple[Tensor, Tensor]:
    if len(pairs) == 1:
        return pairs[0]
    for kind, first, second in zip("xy", *pairs, strict=True):
        if (first.dtype, first.shape[1:]) != (second.dtype, second.shape[1:]):
            raise SpiritlevelError(
                f"The arrays {kind}_train and {kind}_test of {name!r} must have rows of one shape "
                f"and type to be read as one set. Got {tuple(first.shape[1:])} of {first.dtype} "
                f"and {tuple(second.shape[1:])} of {second.dtype}. Ask for 'train' or 'test'."
            )
    x, y = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    return x, y


def _read(numpy: Any, name: str, split: str) -> list[dict[str, Any]]:
    try:
        with open(name, "rb") as file:
            is_array = file.read(len(_MAGIC)) == _MAGIC
            file.seek(0)
            if not is_array:
                with zipfile.ZipFile(file) as archive:
                    return _arrays(numpy, archive, name, split)
    except FileNotFoundError as error:
        raise SpiritlevelError(
            f"The data file {name!r} must exist. There is no such file in {os.getcwd()!r}. "
            "Check the path."
        ) from error
    except SpiritlevelError:
        raise
    except Exception as error:  # damaged archives raise nearly anything
        raise SpiritlevelError(
            f"The data file {name!r} must be an .npz archive of numpy arrays. Reading it failed "
            f"with {type(error).__name__}: {error}. Write it again: numpy.savez(path, x=inputs, "
            "y=targets)."
        ) from error
    raise SpiritlevelError(
        f"The data file {name!r} must be an .npz archive. Got a single array (.npy). "
        "Save both: numpy.savez(path, x=inputs, y=targets)."
    )


def _arrays(numpy: Any, archive: zipfile.ZipFile, name: str, split: str) -> list[dict[str, Any]]:
    """The arrays of the split, once it is known that they do not unpack to too much."""
    members = {
        member.filename.removesuffix(_NPY): member
        for member in archive.infolist()
        if member.filename.endswith(_NPY)
    }
    pairs = _keys(list(members), name, split)
    unpacked = sum(members[key].file_size for pair in pairs for key in pair)
    advice = "Save it without compression: numpy.savez(path, x=inputs, y=targets)."
    check_unpacked(name, unpacked, packed=os.path.getsize(name), advice=advice)
    return [
        {key: _member(numpy, archive, members[key], key=key, name=name) for key in keys}
        for keys in pairs
    ]


def _keys(there: list[str], name: str, split: str) -> list[tuple[str, str]]:
    has_splits = any(key in there for key in ("x_train", "x_test")) and "x" not in there
    if not has_splits and split not in ("train", "all"):
        raise SpiritlevelError(
            f"The 'split' argument of load must be 'train' or 'all' for an .npz file, which "
            f"holds one set. Got {brief(split)} for {name!r}. Save that split to an .npz file of "
            "its own and give its path, or save the arrays x_train, y_train, x_test and y_test."
        )
    parts = ("train", "test") if split == "all" else (split,)
    pairs = [(f"x_{part}", f"y_{part}") for part in parts] if has_splits else [("x", "y")]
    if missing := [key for pair in pairs for key in pair if key not in there]:
        wanted = " and ".join(key for pair in pairs for key in pair)
        raise SpiritlevelError(
            f"The data file {name!r} must have the arrays {wanted}. Missing: "
            f"{', '.join(missing)}; it has: {', '.join(there) or 'nothing'}. "
            "Save them under these names: numpy.savez(path, x=inputs, y=targets)."
        )
    return pairs


def _member(
    numpy: Any, archive: zipfile.ZipFile, member: zipfile.ZipInfo, *, key: str, name: str
) -> Any:
    with archive.open(member) as file:
        shape, dtype = _header(numpy, file)
        if dtype.hasobject:
            raise SpiritlevelError(
                f"The array {key} of {name!r} must hold {_KINDS[key[0]]}. Got Python objects, "
                "which only unpickling could read. Save a rectangular numeric array instead."
            )
        wanted = math.prod(shape) * dtype.itemsize
        has = member.file_size - file.tell()
    if wanted != has:  # before memory is taken for what the heading promises
        raise ValueError(f"{key} has {has} bytes where its heading says {wanted}")
    with archive.open(member) as file:
        return numpy.lib.format.read_array(file, allow_pickle=False)


def _header(numpy: Any, file: IO[bytes]) -> tuple[tuple[int, ...], Any]:
    """Shape and type of an array in a file that stands at its start."""
    version = numpy.lib.format.read_magic(file)
    readers = {
        (1, 0): numpy.lib.format.read_array_header_1_0,
        (2, 0): numpy.lib.format.read_array_header_2_0,
    }
    if version not in readers:
        raise ValueError(f"an array in version {version} of the format, which has no numbers")
    shape, _, dtype = readers[version](file)
    return shape, dtype


def _convert(numpy: Any, array: Any, *, key: str, name: str) -> Tensor:
    """The array as the tensor a network takes, after every check that needs this array alone."""
    if array.size == 0 or array.ndim == 0:
        raise SpiritlevelError(
            f"The array {key} of {name!r} must have at least one row. Got shape {array.shape}. "
            "Save one row for each sample."
        )
    is_input = key.startswith("x")
    is_image = is_input and array.dtype == numpy.uint8
    is_integer = array.dtype.kind in ("i" if is_input else "iu")
    if not (is_image or is_integer or array.dtype.kind == "f"):
        wanted = "float32" if is_input else "int64"
        raise SpiritlevelError(
            f"The array {key} of {name!r} must hold {_KINDS[key[0]]}. Got dtype {array.dtype}. "
            f"Convert it before saving: {key}.astype('{wanted}')."
        )
    if is_integer:
        return torch.from_numpy(array.astype(numpy.int64))
    # A float64 beyond float32's range becomes inf here, and is reported as such just below.
    with numpy.errstate(over="ignore"):
        tensor: Tensor = torch.from_numpy(array.astype(numpy.float32))
    if is_image:
        return tensor.div_(255)
    _check_finite(tensor, key=key, name=name)
    return tensor


def _check_finite(tensor: Tensor, *, key: str, name: str) -> None:
    bad = ~torch.isfinite(tensor)
    if count := int(bad.sum()):
        row = int(bad.reshape(len(bad), -1).any(dim=1).nonzero()[0])
        raise SpiritlevelError(
            f"The array {key} of {name!r} must be finite in float32. Got {count} nan or inf, the "
            f"first in row {row}. Drop or repair those rows."
        )
