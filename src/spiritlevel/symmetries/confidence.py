"""The temperature: multiply the head by one factor, so that only the size of the logits changes."""

from __future__ import annotations

from torch import nn

from ..ground.errors import SpiritlevelError, brief
from .moves import ROOT, Group, Move, Role, Site


def temperature_move(model: nn.Module, head: str) -> Move:
    """Multiply weight and bias of the head, named by its path, by one factor."""
    head = "" if head == ROOT else head
    try:
        module = model.get_submodule(head)
    except AttributeError as error:
        raise SpiritlevelError(
            f"The 'head' argument must be the path of a module. Got {brief(head)}, which the model "
            f"does not have. Its last one is {list(dict(model.named_modules()))[-1]!r}."
        ) from error
    sites = _own_parameters(head, module)
    if not sites:
        raise SpiritlevelError(
            f"The 'head' argument must be the path of a layer with weights. Got {brief(head)}, a "
            f"{type(module).__name__} without any of its own. Name the layer that gives the logits."
        )
    return Move("logit_temperature", (Group(1, tuple(sites)),))


def _own_parameters(path: str, module: nn.Module) -> list[Site]:
    return [
        Site(path, name, 0, (0,) * len(parameter), Role.TIMES)
        for name, parameter in module.named_parameters(recurse=False)
        if parameter.dim() > 0
    ]
