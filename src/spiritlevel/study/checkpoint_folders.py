"""Checkpoints that are folders, as `save_pretrained` of Hugging Face writes them."""

from __future__ import annotations

import os
import pathlib

from ..errors import SpiritlevelError
from ..reading import Misread, parse_json

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
