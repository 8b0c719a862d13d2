"""The attention mask in an .npz file: which tokens of each sample are more than padding."""

from __future__ import annotations

import os
import zipfile

import torch
from torch import Tensor

from ...ground.errors import SpiritlevelError, require
from ...ground.files.names import as_path
from ...ground.files.unpacking import check_unpacked

KEY = "attention_mask"


def read_attention_mask(path: str | os.PathLike[str], split: str, x: Tensor) -> Tensor | None:
    """The mask that goes with the inputs `x` of `read_npz`, or None if the file has none.

    It is named `attention_mask`, or `attention_mask_train` and `attention_mask_test` beside such
    inputs.
    """
    numpy = require("numpy", what="Reading .npz files", extra="cli")
    name = os.fspath(as_path(path, what="data file"))
    with zipfile.ZipFile(name) as archive:
        there = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
        parts = ("train", "test") if split == "all" else (split,)
        keys = [KEY] if KEY in there else [f"{KEY}_{part}" for part in parts]
        found = [key for key in keys if key in there]
        if not found:
            return None
        unpacked = sum(there[key].file_size for key in found)
        advice = "Save it without compression: numpy.savez(path, ...)."
        check_unpacked(name, unpacked, packed=os.path.getsize(name), advice=advice)
        arrays = []
        for key in found:
            with archive.open(there[key]) as file:
                try:
                    arrays.append(numpy.lib.format.read_array(file, allow_pickle=False))
                except ValueError as error:
                    raise _refusal(name, f"what numpy cannot read: {error}") from error
    if any(array.dtype.kind not in "biu" for array in arrays):
        raise _refusal(name, f"dtype {arrays[0].dtype}")
    mask = torch.cat([torch.from_numpy(array.astype(numpy.int64)) for array in arrays])
    if mask.shape != x.shape or not bool(((mask == 0) | (mask == 1)).all()):
        raise _refusal(name, f"shape {tuple(mask.shape)} for inputs of {tuple(x.shape)}")
    return mask


def _refusal(name: str, came: str) -> SpiritlevelError:
    return SpiritlevelError(
        f"The array {KEY} of {name!r} must hold 0 and 1 in the shape of the token ids x. Got "
        f"{came}. Save what the tokenizer returned: numpy.savez(path, x=tokens['input_ids'], "
        f"{KEY}=tokens['{KEY}'], y=labels)."
    )
