"""Checkpoints that are folders, as `save_pretrained` of Hugging Face writes them."""

from __future__ import annotations

import contextlib
import os
import pathlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..ground.errors import SpiritlevelError
from ..records.reading import Misread, parse_json

WHOLE = ("model.safetensors", "pytorch_model.bin", "adapter_model.safetensors")
INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")


def files_in(name: str) -> list[str]:
    """The files with the weights in a folder, one or several; the name itself if it is no folder.

    Raises SpiritlevelError where the folder has none, or names files outside of it.
    """
    folder = pathlib.Path(name)
    if not folder.is_dir():
        return [name]
    for file in WHOLE:
        if (folder / file).is_file():
            return [os.fspath(folder / file)]
    for index in INDEXES:
        if (folder / index).is_file():
            return [os.fspath(folder / part) for part in _parts(folder / index)]
    some = sorted(path.name for path in folder.iterdir())[:5]
    raise SpiritlevelError(
        f"The checkpoint {name!r} is a folder without weights: it must have one of "
        f"{', '.join((*WHOLE, *INDEXES))}, as save_pretrained writes them. It has: "
        f"{', '.join(some) or 'nothing'}. Give the path of the file with the weights."
    )


def renamed_by_transformers(
    model: nn.Module, name: str, found: Mapping[str, Tensor]
) -> dict[str, Tensor] | None:
    """A folder as transformers itself reads it, under the model's own names; None if it cannot.

    From version 5 on, `save_pretrained` writes some networks under the names, and in the parts, of
    former versions: the experts of a mixture one by one, where the model holds them as one tensor.
    What transformers could not place is on the device "meta", in the shape it has in the file.
    """
    library = sys.modules.get("transformers")
    if library is None or int(library.__version__.split(".")[0]) < 5 or not os.path.isdir(name):
        return None
    if not isinstance(model, library.PreTrainedModel):
        return None
    floats = [tensor.dtype for tensor in found.values() if tensor.is_floating_point()]
    dtype = torch.float32
    for each in floats:  # no number of the file is rounded
        dtype = torch.promote_types(dtype, each)
    with _quietly(library):
        read, told = type(model).from_pretrained(
            name,
            config=model.config,
            dtype=dtype,
            local_files_only=True,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    state = read.state_dict()
    placed = {key: value for key, value in state.items() if key not in told["missing_keys"]}
    shapes = {key: tuple(shape) for key, shape, _ in told["mismatched_keys"]}
    shapes |= {key: found[key].shape for key in told["unexpected_keys"] if key in found}
    return placed | {key: torch.empty(shape, device="meta") for key, shape in shapes.items()}


@contextlib.contextmanager
def _quietly(library: Any) -> Iterator[None]:
    """Without bars and tables: what does not fit becomes one error of ours."""
    logging = library.utils.logging
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _parts(index: pathlib.Path) -> list[str]:
    """The files that an index names; each lies beside it."""
    try:
        content = parse_json(index.read_text("utf-8"))
        parts = sorted(set(content["weight_map"].values()))
    except (Misread, KeyError, AttributeError, TypeError, UnicodeDecodeError) as error:
        raise SpiritlevelError(
            f"The index {os.fspath(index)!r} of a checkpoint cannot be read: {error}. Save the "
            "model again with save_pretrained."
        ) from error
    if outside := [part for part in parts if part != pathlib.PurePath(part).name]:
        raise SpiritlevelError(
            f"The index {os.fspath(index)!r} of a checkpoint names the file {outside[0]!r}, which "
            "does not lie beside it. Copy the whole folder, and leave its files where they are."
        )
    return parts
