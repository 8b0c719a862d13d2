"""A shifted bias: how often units fire, moved by hand (paper 001, Figure 2)."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from spiritlevel.ground.errors import SpiritlevelError, brief

from .layer_names import no_such_layer


def bias_shift(model: nn.Module, layer: str, amount: float) -> nn.Module:
    """A copy of the model in which `amount` is added to every bias of the layer.

    The paper shifts the first layer of VGG-small by -1 to 1: the further up, the more units fire.
    """
    shifted = copy.deepcopy(model)
    modules = dict(shifted.named_modules())
    if layer not in modules:
        raise no_such_layer(layer, list(modules), function="bias_shift", argument="layer")
    bias = getattr(modules[layer], "bias", None)
    if not isinstance(bias, Tensor):
        having = [p for p, m in modules.items() if isinstance(getattr(m, "bias", None), Tensor)]
        raise SpiritlevelError(
            f"The 'layer' argument of bias_shift must be a layer with a bias. Got {brief(layer)}, "
            f"a {type(modules[layer]).__name__} without one. With a bias: "
            f"{', '.join(having) or 'none in this model'}."
        )
    with torch.no_grad():
        bias.add_(amount)
    return shifted
