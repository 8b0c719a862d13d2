"""Multiply all weights of a network by a factor without changing a decision (paper 001, Fig. 1)."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

WEIGHTED = (nn.Conv2d, nn.Linear)


@torch.no_grad()
def scaled_weights(model: nn.Module, factor: float) -> nn.Module:
    """A copy of a ReLU network with all weights times `factor`; its outputs keep their proportions.

    If the inputs of a layer have grown by s, its outputs grow by s × factor, so its bias is
    multiplied by that. A BatchNorm's running statistics are scaled like its inputs, and its weights
    and biases are multiplied like all others. Layers must be listed in the order of their use.
    """
    scaled = copy.deepcopy(model)
    growth = 1.0
    for module in scaled.modules():
        if isinstance(module, WEIGHTED):
            growth *= factor
            module.weight.mul_(factor)
            if module.bias is not None:
                module.bias.mul_(growth)
        elif isinstance(module, _BatchNorm):
            _follow(module, growth)
            module.weight.mul_(factor)
            module.bias.mul_(factor)
            growth = factor
    return scaled


def _follow(norm: _BatchNorm, growth: float) -> None:
    """Scale the running statistics to match inputs that have grown, eps included."""
    mean, variance = norm.running_mean, norm.running_var
    assert isinstance(mean, Tensor)
    assert isinstance(variance, Tensor)
    mean.mul_(growth)
    variance.add_(norm.eps).mul_(growth**2).sub_(norm.eps)
