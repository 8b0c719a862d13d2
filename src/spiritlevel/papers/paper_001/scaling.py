"""All weights of a network times a factor, with every decision as it was (paper 001, Fig. 1)."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

WEIGHTED = (nn.Conv2d, nn.Linear)


@torch.no_grad()
def scaled_weights(model: nn.Module, factor: float) -> nn.Module:
    """A copy of a ReLU network with all weights times `factor`; its outputs keep their proportions.

    A layer whose inputs have grown by s gives outputs that have grown by s × factor, so its bias
    grows by as much; a BatchNorm's running statistics follow what it reads, and its own weights
    and biases are weights like others. Layers must stand in the order in which they are used.
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
    """Running statistics of inputs that have grown; the small constant in the root grows along."""
    mean, variance = norm.running_mean, norm.running_var
    assert isinstance(mean, Tensor)
    assert isinstance(variance, Tensor)
    mean.mul_(growth)
    variance.add_(norm.eps).mul_(growth**2).sub_(norm.eps)
