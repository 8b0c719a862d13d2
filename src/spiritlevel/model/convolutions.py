"""Convolutions whose second derivatives are convolutions of the usual kinds.

torch computes one part of a convolution's second derivative as a convolution with an image for a
kernel, which takes a GPU several times as long as the same number from the kernel that computes the
gradient of a weight. A convolution, its gradient in the input and its gradient in the weight are
all linear in each of two arguments, and their derivatives are one another. So three functions, each
with its usual kernel, are enough for derivatives of any order. On a CPU a third derivative of
VGG-small takes a fifth less time that way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._functorch.utils import unwrap_dead_wrappers
from torch.autograd import Function
from torch.overrides import TorchFunctionMode

SPATIAL: dict[Callable[..., Any], int] = {torch.conv1d: 1, torch.conv2d: 2, torch.conv3d: 3}


class Geometry(NamedTuple):
    """What a convolution needs to know besides its tensors."""

    stride: list[int]
    padding: list[int]
    dilation: list[int]
    groups: int

    def convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The values of w ∗ x + b."""
        none = [0] * len(self.stride)
        result: Tensor = torch.ops.aten.convolution(
            x, weight, bias, self.stride, self.padding, self.dilation, False, none, self.groups
        )
        return result

    def gradient(self, gradient: Tensor, x: Tensor, weight: Tensor, wanted: list[bool]) -> Any:
        """Gradients in input and weight, as far as wanted; of the other only the shape counts."""
        return torch.ops.aten.convolution_backward(
            gradient,
            x,
            weight,
            None,
            self.stride,
            self.padding,
            self.dilation,
            False,
            [0] * len(self.stride),
            self.groups,
            [*wanted, False],
        )


class Convolution(Function):
    """w ∗ x + b."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
        """The convolution, with or without a bias."""
        return geometry.convolve(x, weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep both tensors."""
        x, weight, _, ctx.geometry = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, delta: Tensor) -> tuple[Tensor | None, ...]:
        """In the input, the weight and the bias."""
        return gradients(ctx, delta, WeightGradient)


class InputGradient(Function):
    """The gradient of a convolution in its input: linear in the signal δ and in the weight."""

    generate_vmap_rule = True

    @staticmethod
    def forward(delta: Tensor, weight: Tensor, shape: torch.Size, geometry: Geometry) -> Tensor:
        """Of an input of this shape."""
        empty = delta.new_empty(shape)
        result: Tensor = geometry.gradient(delta, empty, weight, [True, False])[0]
        return result

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep both tensors."""
        delta, weight, _, ctx.geometry = inputs
        ctx.save_for_backward(delta, weight)

    @staticmethod
    def backward(ctx: Any, along: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        """In δ it is the convolution, in the weight the gradient in the weight."""
        delta, weight = ctx.saved_tensors
        in_delta = in_weight = None
        if ctx.needs_input_grad[0]:
            in_delta = apply(Convolution, along, weight, None, ctx.geometry)
        if ctx.needs_input_grad[1]:
            in_weight = apply(WeightGradient, along, delta, weight.shape, ctx.geometry)
        return in_delta, in_weight, None, None


class WeightGradient(Function):
    """The gradient of a convolution in its weight: linear in the input and in the signal δ."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, delta: Tensor, shape: torch.Size, geometry: Geometry) -> Tensor:
        """Of a weight of this shape."""
        empty = x.new_empty(shape)
        result: Tensor = geometry.gradient(delta, x, empty, [False, True])[1]
        return result

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep both tensors."""
        x, delta, _, ctx.geometry = inputs
        ctx.save_for_backward(x, delta)

    @staticmethod
    def backward(ctx: Any, along: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        """In the input it is the gradient in the input, in δ the convolution."""
        x, delta = ctx.saved_tensors
        in_x = in_delta = None
        if ctx.needs_input_grad[0]:
            in_x = apply(InputGradient, delta, along, x.shape, ctx.geometry)
        if ctx.needs_input_grad[1]:
            in_delta = apply(Convolution, x, along, None, ctx.geometry)
        return in_x, in_delta, None, None


def gradients(
    ctx: Any, delta: Tensor, weight_gradient: type[Function]
) -> tuple[Tensor | None, ...]:
    """What the backward of a convolution returns; `weight_gradient` is that in the weight."""
    x, weight = ctx.saved_tensors
    in_x = in_weight = in_bias = None
    if ctx.needs_input_grad[0]:
        in_x = apply(InputGradient, delta, weight, x.shape, ctx.geometry)
    if ctx.needs_input_grad[1]:
        in_weight = apply(weight_gradient, x, delta, weight.shape, ctx.geometry)
    if ctx.needs_input_grad[2]:
        in_bias = delta.sum(dim=[0, *range(2, delta.dim())])
    return in_x, in_weight, in_bias, None


def apply(function: type[Function], *arguments: Any) -> Tensor:
    """The result of an autograd function, all of whose arguments are given.

    Function.apply looks for defaults in the signature, which on a GPU takes longer than starting
    the convolution. Only a transform of torch.func needs the rest of what it does.
    """
    if torch._C._are_functorch_transforms_active():
        result: Tensor = function.apply(*arguments)
    else:
        plain: Any = super(Function, function)
        result = plain.apply(*unwrap_dead_wrappers(arguments))
    return result


class UsualConvolutions(TorchFunctionMode):
    """Replaces plain convolutions during the block; all else is left to torch."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in SPATIAL and (replaced := _replaced(SPATIAL[func], *args, **kwargs)) is not None:
            return replaced
        return func(*args, **kwargs)


def geometry_of(
    dims: int,
    input: Tensor,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Geometry | None:
    """From the arguments of torch's functions; None for what ours do not know."""
    if isinstance(padding, str) or input.dim() != dims + 2:
        return None
    steps, edges, gaps = (_by_dimension(sizes, dims) for sizes in (stride, padding, dilation))
    return Geometry(steps, edges, gaps, groups)


def _by_dimension(sizes: Any, dims: int) -> list[int]:
    """A stride, padding or dilation with one number for each dimension."""
    given = [sizes] if isinstance(sizes, int) else list(sizes)
    return given * dims if len(given) == 1 else given


def _replaced(
    dims: int, input: Tensor, weight: Tensor, bias: Tensor | None = None, *args: Any, **kwargs: Any
) -> Tensor | None:
    """The convolution by our functions; None for what they do not know."""
    geometry = geometry_of(dims, input, *args, **kwargs)
    tensors = [input, weight] if bias is None else [input, weight, bias]
    if geometry is None or not torch.is_grad_enabled() or len({t.dtype for t in tensors}) > 1:
        return None  # under autocast torch rounds the arguments first
    return apply(Convolution, input, weight, bias, geometry)
