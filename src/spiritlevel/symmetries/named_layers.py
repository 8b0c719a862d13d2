"""Moves between two layers that the caller names.

A number that moves under one of these says something about the parameters and nothing about the
function; such numbers cannot be compared between networks. Each move returns a changed copy.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn


def rescale_layers(model: nn.Module, producer: str, consumer: str, factor: float) -> nn.Module:
    """Multiply `producer` (weight and bias) by a factor and divide the weight of `consumer`."""
    width = len(model.get_submodule(producer).weight)  # type: ignore[arg-type]
    factors = torch.full((width,), factor, dtype=torch.float64)
    return rescale_neurons(model, producer, consumer, factors)


def rescale_neurons(model: nn.Module, producer: str, consumer: str, factors: Tensor) -> nn.Module:
    """Multiply each unit of `producer` by its factor and divide what reads it in `consumer`."""
    moved = copy.deepcopy(model)
    first, second = moved.get_submodule(producer), moved.get_submodule(consumer)
    with torch.no_grad():
        for parameter in first.parameters(recurse=False):
            scale = factors.to(parameter)
            parameter.mul_(scale.reshape(-1, *[1] * (parameter.dim() - 1)))
        weight: Tensor = second.weight  # type: ignore[assignment]
        # after a flatten each unit of the producer feeds a block of adjacent columns
        blocks = weight.unflatten(1, (len(factors), -1))
        scale = factors.to(weight).reshape(1, -1, *[1] * (blocks.dim() - 2))
        weight.copy_((blocks / scale).flatten(1, 2))
    return moved


def permute_units(model: nn.Module, producer: str, consumer: str, order: Tensor) -> nn.Module:
    """Reorder the units of `producer` and what reads them in `consumer`."""
    moved = copy.deepcopy(model)
    first, second = moved.get_submodule(producer), moved.get_submodule(consumer)
    with torch.no_grad():
        for parameter in first.parameters(recurse=False):
            parameter.copy_(parameter[order].clone())
        weight: Tensor = second.weight  # type: ignore[assignment]
        blocks = weight.unflatten(1, (len(order), -1))
        weight.copy_(blocks[:, order].flatten(1, 2).clone())
    return moved
