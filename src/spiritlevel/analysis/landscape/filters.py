"""Random directions in which every filter is as long as the network's own (Li et al. 2018).

A network whose filters are multiplied by some number, with the next layer divided by it, has other
weights and the same function. A random direction of fixed length would be a large step for
one and a small step for the other; with this normalization both show the same slice.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...engine.weight_space.noise import normal_numbers
from ...engine.weight_space.perturbed import Weights
from ...errors import SpiritlevelError
from ...model.surface import Surface

NORMALIZATIONS = (
    nn.modules.batchnorm._NormBase,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
    nn.LocalResponseNorm,
)


def random_direction(surface: Surface, *, seed: int, number: int, biases: bool) -> Weights:
    """A direction that follows from the seed and its number alone.

    `biases=False` leaves biases, parameters of normalization layers and everything else that is
    one number per unit unchanged; otherwise such a parameter counts as one filter.
    """
    numbers = normal_numbers(surface, seed, "landscape", number)
    direction: Weights = {}
    for name, parameter in surface.parameters.items():
        module = surface.layers.module(surface.layers.of(name))
        if parameter.dim() <= 1 or isinstance(module, NORMALIZATIONS):
            if not biases:
                continue
            rows, reference = numbers[name].flatten()[None], parameter.detach().flatten()[None]
            shaped = _rescaled(rows, reference).reshape(parameter.shape)
        else:
            rows, reference = (_filters(module, t) for t in (numbers[name], parameter.detach()))
            shaped = _unfiltered(module, _rescaled(rows, reference), parameter)
        direction[name] = shaped.to(torch.promote_types(parameter.dtype, torch.float32))
    if not any(bool(step.any()) for step in direction.values()):
        raise SpiritlevelError(
            "A random direction with the norms of the network's filters must have a weight to "
            "move. All trainable weights here are biases, of normalization layers, or zero. "
            "Choose other 'layers', or pass biases=True."
        )
    return direction


def _rescaled(rows: Tensor, reference: Tensor) -> Tensor:
    """The rows with the lengths of the reference rows."""
    lengths = reference.double().norm(dim=1, keepdim=True)
    return rows * (lengths / rows.norm(dim=1, keepdim=True))


def _filters(module: nn.Module, weight: Tensor) -> Tensor:
    """One row for each output unit.

    A transposed convolution has its outputs in the second dimension, group by group.
    """
    if isinstance(module, nn.modules.conv._ConvTransposeNd):
        weight = weight.unflatten(0, (module.groups, -1)).transpose(1, 2).flatten(0, 1)
    return weight.flatten(1)


def _unfiltered(module: nn.Module, rows: Tensor, like: Tensor) -> Tensor:
    """Rows as `_filters` makes them, back in the shape of the weight."""
    if isinstance(module, nn.modules.conv._ConvTransposeNd):
        outputs, inputs = like.shape[1], like.shape[0] // module.groups
        apart = rows.view(module.groups, outputs, inputs, *like.shape[2:])
        return apart.transpose(1, 2).reshape(like.shape)
    return rows.view(like.shape)
