"""The workspace that every verb starts from, out of the verb's arguments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import nn

from ..engine.head.head_layer import choose_head
from ..engine.plan import make_head_plan
from ..engine.precision import Method, Precision
from ..engine.workspace import Workspace
from ..errors import SpiritlevelError, brief
from ..model.arithmetic import Arithmetic, full_precision
from ..model.batches import Forward
from ..model.distributed import Processes
from ..model.model_state import check_model
from ..model.surface import Surface
from ..records import Progress
from .options import Options, as_options


def open_workspace(
    model: nn.Module,
    data: Iterable[Any],
    *,
    loss: Any = "cross_entropy",
    layers: str | Sequence[str] | None = None,
    head: str | None = None,
    forward: Forward | None = None,
    method: Method = "auto",
    rtol: float = 0.05,
    confidence: float = 0.95,
    max_passes: int = 100,
    options: Options | Mapping[str, Any] | None = None,
    memory: int | None = None,
    arithmetic: Arithmetic = "full",
    seed: int = 0,
    distributed: bool = True,
    progress: Progress | None = None,
) -> Workspace:
    """The workspace every verb starts from: over the chosen layers, with checked arguments.

    The arguments are those of `measure` but its measures.
    """
    precision = Precision(method, rtol, confidence, max_passes)
    options = as_options(options)
    if memory is not None and memory <= 0:
        raise SpiritlevelError(
            f"The 'memory' argument must be a positive number of bytes. Got {brief(memory)}. "
            "Leave it out for 640 MiB, or half the free memory of a GPU."
        )
    common = {
        "loss": loss,
        "forward": forward,
        "progress": progress,
        "processes": Processes(join=distributed),
        "arithmetic": arithmetic,
    }
    surface = Surface(model, data, layers=None if layers == "head" else layers, **common)
    check_model(surface.model)
    if layers == "head":
        surface = Surface(model, data, layers=_head_layer(surface, head), **common)
    return Workspace(
        surface,
        head=head,
        memory=None if memory is None else int(memory),  # 2e9 is a number of bytes too
        seed=seed,
        precision=precision,
        options=options,
    )


def _head_layer(surface: Surface, head: str | None) -> str:
    """What the layers "head" are: the one of this name, or else the head."""
    if "head" in surface.layers():
        return "head"
    with surface.preserved(), full_precision():
        return choose_head(make_head_plan(surface).heads, head).layer
