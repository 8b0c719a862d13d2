"""Moves that change how confident a network is and not which class it names."""

from __future__ import annotations

from torch import nn

from .._core import SpiritlevelError
from .moves import ROOT, Group, Move, Role, Site


def temperature_move(model: nn.Module, head: str) -> Move:
    """Multiply weight and bias of the head, named by its path, by one factor."""
    head = "" if head == ROOT else head
    try:
        module = model.get_submodule(head)
    except AttributeError as error:
        raise SpiritlevelError(
            f"The 'head' argument must be the path of a module. Got {head!r}, which the model "
            f"does not have. Its last one is {list(dict(model.named_modules()))[-1]!r}."
        ) from error
    sites = _own_parameters(head, module)
    if not sites:
        raise SpiritlevelError(
            f"The 'head' argument must be the path of a layer with weights. Got {head!r}, a "
            f"{type(module).__name__} without any of its own. Name the layer that gives the logits."
        )
    return Move("logit_temperature", (Group(1, tuple(sites)),))


def weight_scale_move(model: nn.Module) -> Move:
    """Multiply weights and biases of all linear and convolutional layers by one factor."""
    sites = [
        site
        for path, module in model.named_modules()
        if isinstance(module, (nn.Linear, nn.modules.conv._ConvNd)) or _is_conv1d(module)
        for site in _own_parameters(path, module)
    ]
    # two layers that share a weight share its factor
    sites = list({id(site.of(model)): site for site in sites}.values())
    if not sites:
        raise SpiritlevelError(
            "The 'model' argument must have linear or convolutional layers. Got a "
            f"{type(model).__name__} without any. Leave out weight_scale."
        )
    return Move("weight_scale", (Group(1, tuple(sites)),))


def _own_parameters(path: str, module: nn.Module) -> list[Site]:
    return [
        Site(path, name, 0, (0,) * len(parameter), Role.TIMES)
        for name, parameter in module.named_parameters(recurse=False)
        if parameter.dim() > 0
    ]


def _is_conv1d(module: nn.Module) -> bool:
    return type(module).__name__ == "Conv1D" and "weight" in module._parameters
