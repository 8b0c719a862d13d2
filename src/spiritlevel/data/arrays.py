"""A user's own data: an .npz file with the arrays `x` and `y`."""

from __future__ import annotations

import os
import zipfile
import zlib
from typing import Any

import torch
from torch import Tensor

from .._core import SpiritlevelError, require

_KINDS = {
    "x": "uint8 images, floats, or signed integers (token ids)",
    "y": "integers (class labels) or floats",
}


def read_npz(path: str | os.PathLike[str]) -> tuple[Tensor, Tensor]:
    """Inputs and targets from the arrays `x` and `y` of an .npz file, checked.

    uint8 images become float32 in [0, 1], floats float32, labels and token ids int64. Nothing in
    the file is ever unpickled.
    """
    numpy = require("numpy", what="Reading .npz files", extra="cli")
    name = os.fspath(path)
    raw = _read(numpy, name)
    x, y = (_convert(numpy, raw[key], key=key, name=name) for key in ("x", "y"))
    if len(x) != len(y):
        raise SpiritlevelError(
            f"The arrays x and y of {name!r} must be equally long. Got {len(x)} and {len(y)} rows. "
            "Save one target for each input."
        )
    return x, y


def _read(numpy: Any, name: str) -> dict[str, Any]:
    try:
        archive = numpy.load(name, allow_pickle=False)
    except FileNotFoundError as error:
        raise SpiritlevelError(
            f"The data file {name!r} must exist. There is no such file in {os.getcwd()!r}. "
            "Check the path."
        ) from error
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise _unreadable(name, error) from error
    if not isinstance(archive, numpy.lib.npyio.NpzFile):
        raise SpiritlevelError(
            f"The data file {name!r} must be an .npz archive. Got a single array (.npy). "
            "Save both: numpy.savez(path, x=inputs, y=targets)."
        )
    with archive:
        if missing := [key for key in ("x", "y") if key not in archive.files]:
            raise SpiritlevelError(
                f"The data file {name!r} must have the arrays x and y. Missing: "
                f"{', '.join(missing)}; it has: {', '.join(archive.files) or 'nothing'}. "
                "Save them under these names: numpy.savez(path, x=inputs, y=targets)."
            )
        return {key: _member(archive, key=key, name=name) for key in ("x", "y")}


def _member(archive: Any, *, key: str, name: str) -> Any:
    try:
        return archive[key]
    except ValueError as error:
        # numpy's refusal to unpickle is a ValueError like any other: only its text tells.
        if "allow_pickle" not in str(error):
            raise _unreadable(name, error) from error
        raise SpiritlevelError(
            f"The array {key} of {name!r} must hold {_KINDS[key]}. Got Python objects, which only "
            "unpickling could read. Save a rectangular numeric array instead."
        ) from error
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise _unreadable(name, error) from error


def _unreadable(name: str, error: Exception) -> SpiritlevelError:
    return SpiritlevelError(
        f"The data file {name!r} must be an .npz archive of numpy arrays. Reading it failed with "
        f"{type(error).__name__}: {error}. Write it again: numpy.savez(path, x=inputs, y=targets)."
    )


def _convert(numpy: Any, array: Any, *, key: str, name: str) -> Tensor:
    """The array as the tensor a network takes, after every check that needs this array alone."""
    if array.size == 0 or array.ndim == 0:
        raise SpiritlevelError(
            f"The array {key} of {name!r} must have at least one row. Got shape {array.shape}. "
            "Save one row for each sample."
        )
    is_image = key == "x" and array.dtype == numpy.uint8
    is_integer = array.dtype.kind in ("i" if key == "x" else "iu")
    if not (is_image or is_integer or array.dtype.kind == "f"):
        wanted = "float32" if key == "x" else "int64"
        raise SpiritlevelError(
            f"The array {key} of {name!r} must hold {_KINDS[key]}. Got dtype {array.dtype}. "
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
