"""Convolutions whose third derivatives are convolutions, and whose weight gradients can wait."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from ....model.convolutions import (
    SPATIAL,
    Convolution,
    Geometry,
    WeightGradient,
    apply,
    geometry_of,
    gradients,
)
from .deferral import may_skip, stand_in


def convolve(
    func: Any, input: Tensor, weight: Tensor, bias: Tensor | None = None, *args: Any, **kwargs: Any
) -> Tensor:
    """torch.conv1d, 2d or 3d, with the names of their arguments."""
    geometry = geometry_of(SPATIAL[func], input, *args, **kwargs)
    if geometry is None or torch.is_autocast_enabled(input.device.type):
        result: Tensor = func(input, weight, bias, *args, **kwargs)
        return result
    return apply(_Convolution, input, weight, bias, geometry)


class _Convolution(Function):
    """w ∗ x + b, as a function that can be deferred."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
        return geometry.convolve(x, weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        Convolution.setup_context(ctx, inputs, output)
        ctx.deferred = False  # see deferral.py

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        skips = ctx.needs_input_grad[1] and may_skip(ctx, ctx.saved_tensors[1])
        return gradients(ctx, grads[0], _UnseenGradient if skips else WeightGradient)


class _UnseenGradient(Function):
    """A gradient in the weight whose value nobody reads, with the derivatives of the true one."""

    setup_context = WeightGradient.setup_context
    backward = WeightGradient.backward

    @staticmethod
    def forward(x: Tensor, delta: Tensor, shape: torch.Size, geometry: Geometry) -> Tensor:
        return stand_in(x, shape)
