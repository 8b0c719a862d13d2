"""Weight gradients of which only the graph is wanted.

A Hessian-vector product is the derivative of ⟨g, v⟩. It needs to know how the gradient g depends on
the parameters, not its value: while the functions of a loss are deferred, their gradients in
weights that are parameters themselves are placeholders with the right derivatives. That saves one
of the six large products in a penalty on the first layer of a perceptron.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from ...model.convolutions import (
    SPATIAL,
    Convolution,
    Geometry,
    WeightGradient,
    apply,
    geometry_of,
    gradients,
)


@contextlib.contextmanager
def deferred(functions: Sequence[Any]) -> Iterator[None]:
    """During the block these functions of one graph leave out the values of weight gradients."""
    try:
        for function in functions:
            function.deferred = True
        yield
    finally:
        for function in functions:
            function.deferred = False


def may_skip(function: Any, weight: Tensor) -> bool:
    """Whether only the caller of `deferred` will see this weight's gradient."""
    return bool(function.deferred) and weight.is_leaf and not weight._backward_hooks


def stand_in(like: Tensor, shape: torch.Size) -> Tensor:
    """Zeros that take no memory."""
    return like.new_zeros(()).expand(shape)


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """F.linear, with the names of its arguments."""
    if weight.dim() != 2 or torch.is_autocast_enabled(input.device.type):
        return F.linear(input, weight, bias)
    out: Tensor = _Linear.apply(input, weight, bias)  # type: ignore[no-untyped-call]
    return out


class _Linear(Function):
    """The linear layer x wᵀ + b."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.deferred = False
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (signal,) = grads
        x, weight = ctx.saved_tensors
        for_x = for_weight = for_bias = None
        if ctx.needs_input_grad[0]:
            for_x = signal @ weight
        if ctx.needs_input_grad[1]:
            rows, signals = x.reshape(-1, x.shape[-1]), signal.reshape(-1, signal.shape[-1])
            skip = may_skip(ctx, weight)
            for_weight = _LinearWeightGradient.apply(rows, signals, skip)  # type: ignore[no-untyped-call]
        if ctx.needs_input_grad[2]:
            for_bias = signal.reshape(-1, signal.shape[-1]).sum(dim=0)
        return for_x, for_weight, for_bias


class _LinearWeightGradient(Function):
    """The gradient in w, Σ_n signal_n x_nᵀ."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, signal: Tensor, skip: bool) -> Tensor:
        ctx.save_for_backward(x, signal)
        if skip:
            return stand_in(x, torch.Size([signal.shape[1], x.shape[1]]))
        return signal.T @ x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (weight,) = grads
        x, signal = ctx.saved_tensors
        for_x = signal @ weight if ctx.needs_input_grad[0] else None
        for_signal = x @ weight.T if ctx.needs_input_grad[1] else None
        return for_x, for_signal, None


def convolve(
    func: Any, input: Tensor, weight: Tensor, bias: Tensor | None = None, *args: Any, **kwargs: Any
) -> Tensor:
    """torch.conv1d, 2d or 3d, with the names of their arguments."""
    geometry = geometry_of(SPATIAL[func], input, *args, **kwargs)
    if geometry is None or torch.is_autocast_enabled(input.device.type):
        result: Tensor = func(input, weight, bias, *args, **kwargs)
        return result
    return apply(_DeferrableConvolution, input, weight, bias, geometry)


class _DeferrableConvolution(Function):
    """w ∗ x + b, as a function that can be deferred."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
        return geometry.convolve(x, weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        Convolution.setup_context(ctx, inputs, output)
        ctx.deferred = False

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
