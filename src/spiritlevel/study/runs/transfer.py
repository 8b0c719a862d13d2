"""A start from weights that were trained before, and the two parts of a network: backbone, head."""

from __future__ import annotations

import os
import pathlib
import sqlite3
from contextlib import closing

from torch import nn

from ...errors import SpiritlevelError
from ..checkpoints import load_checkpoint
from ..storage.database import DATABASE

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def head_path(model: nn.Module, name: str | None = None) -> str:
    """The layer that gives the outputs: as named, else the one called `head`, else the last one."""
    modules = dict(model.named_modules())
    if name is not None:
        if name not in modules:
            raise SpiritlevelError(
                f"The study's measure_options.head must name a layer of the model. Got {name!r}. "
                f"There are: {', '.join(path for path in modules if path)}."
            )
        return name
    if "head" in modules:
        return "head"
    paths = [path for path, module in modules.items() if isinstance(module, LAYERS)]
    if not paths:
        raise SpiritlevelError(
            f"The network {type(model).__name__} must have a head: a linear or convolution layer. "
            "It has none; name the layer with measure_options.head."
        )
    return paths[-1]


def parts(
    model: nn.Module, head: str | None = None
) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """The parameters of the backbone, and those of the head."""
    own = list(model.get_submodule(head_path(model, head)).parameters())
    ids = {id(param) for param in own}
    return [param for param in model.parameters() if id(param) not in ids], own


def load_start(
    model: nn.Module, start: str, *, seed: int, fresh_head: bool, head: str | None = None
) -> None:
    """Put trained weights into the network; with `fresh_head` all but those of the head.

    Args:
        model: changed in place.
        start: a checkpoint's path; a study's folder, for its run with this seed; or
            "folder#run" for a run by its id.
        seed: of the run that starts here.
        fresh_head: keep the head that the network has, which may have other classes.
        head: the name of the head, where it is not called so.
    """
    path = find_start(start, seed)
    load_checkpoint(model, path, keep=head_path(model, head) if fresh_head else None)


def find_start(start: str, seed: int) -> pathlib.Path:
    """The checkpoint that `start` stands for."""
    path = pathlib.Path(os.path.expanduser(start))
    folder, _, run = start.partition("#")
    if path.is_file() or not (run or path.is_dir()):
        return path  # one that is not there is refused by whoever reads it
    folder_path = pathlib.Path(os.path.expanduser(folder))
    if not (folder_path / DATABASE).is_file():
        raise SpiritlevelError(
            f"The study's model.init_from must be a checkpoint, or the folder of a study. "
            f"{folder!r} holds no {DATABASE}. Check the path."
        )
    return folder_path / "checkpoints" / f"{run or _run_of(folder_path, seed)}.safetensors"


def _run_of(folder: pathlib.Path, seed: int) -> str:
    """The one finished run of a study that has this seed."""
    with closing(sqlite3.connect(folder / DATABASE)) as connection:
        found = connection.execute(
            "SELECT id FROM runs WHERE seed = ? AND status = 'done'", (seed,)
        ).fetchall()
    if len(found) != 1:
        raise SpiritlevelError(
            f"The study in {str(folder)!r} must have one finished run with seed {seed} to start "
            f"from. It has {len(found)}. Run it first, or name the run: '{folder}#ID'."
        )
    [[run]] = found
    return str(run)
