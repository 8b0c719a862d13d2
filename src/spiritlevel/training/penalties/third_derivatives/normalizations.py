"""Normalizations written out, for their third derivatives.

torch's own batch_norm (in train mode), instance_norm and layer_norm have right first and second
derivatives, but their second derivative holds mean and variance fixed when it is differentiated
again: the third derivative is wrong. Nothing warns of that (seen in torch 2.13).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """F.batch_norm, with the names of its arguments."""
    if not training:
        return F.batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    with torch.no_grad():  # updates the statistics, and refuses what torch refuses
        F.batch_norm(input, running_mean, running_var, None, None, True, momentum, eps)
    dims = [0, *range(2, input.dim())]
    return _by_channel(_standardized(input, dims, eps), weight, bias)


def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """F.instance_norm, with the names of its arguments."""
    statistics = running_mean, running_var
    if not use_input_stats:
        return F.instance_norm(input, *statistics, weight, bias, False, momentum, eps)
    with torch.no_grad():
        F.instance_norm(input, *statistics, None, None, True, momentum, eps)
    return _by_channel(_standardized(input, list(range(2, input.dim())), eps), weight, bias)


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """F.layer_norm, with the names of its arguments."""
    output = _standardized(input, list(range(-len(normalized_shape), 0)), eps)
    output = output if weight is None else output * weight
    return output if bias is None else output + bias


def _standardized(x: Tensor, dims: list[int], eps: float) -> Tensor:
    centred = x - x.mean(dim=dims, keepdim=True)
    return centred * (centred.square().mean(dim=dims, keepdim=True) + eps).rsqrt()


def _by_channel(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    shape = [-1] + [1] * (x.dim() - 2)
    x = x if weight is None else x * weight.view(shape)
    return x if bias is None else x + bias.view(shape)
