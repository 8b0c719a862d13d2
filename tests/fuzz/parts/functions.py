"""Custom autograd functions, right and wrong ones, and parts that stop a gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


class _SavedSlope(torch.autograd.Function):
    """tanh with its slope saved as a constant: the second derivative is silently wrong."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.tanh()
        ctx.save_for_backward(1 - y * y)
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * ctx.saved_tensors[0]


class SavedSlope(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return _SavedSlope.apply(x)


class _Differentiable(torch.autograd.Function):
    """tanh with a backward that can be differentiated again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.tanh()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return g * (1 - y * y)


class Differentiable(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return _Differentiable.apply(x)


class _Once(torch.autograd.Function):
    """softplus, declared as differentiable once."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.nn.functional.softplus(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * ctx.saved_tensors[0].sigmoid()


class Once(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return _Once.apply(x)


class _OnceRectified(torch.autograd.Function):
    """ReLU, declared as differentiable once: nothing is lost by that."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x > 0)
        return x.clamp(min=0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * ctx.saved_tensors[0]


class OnceRectified(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return _OnceRectified.apply(x)


class _ScaledGradient(torch.autograd.Function):
    """The identity, with a gradient that is not its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 0.3 * g


class ScaledGradient(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return _ScaledGradient.apply(x)


class StoppedGate(nn.Module):
    """A gate whose gradient is stopped, as if it were a constant."""

    def forward(self, x: Tensor) -> Tensor:
        return x * x.detach().sigmoid()


class StoppedBranch(nn.Module):
    """Half of the signal carries no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.map(x) + 0.5 * x.detach()


class GradientHook(nn.Module):
    """A hook on a tensor changes the gradient that passes."""

    def forward(self, x: Tensor) -> Tensor:
        y = x * 1.0
        if y.requires_grad:
            y.register_hook(lambda g: 0.5 * g)
        return y
