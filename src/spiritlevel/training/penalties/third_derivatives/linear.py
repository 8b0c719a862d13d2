"""A linear layer that can skip computing the value of its weight's gradient."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .deferral import may_skip, stand_in


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """F.linear, with the names of its arguments."""
    if weight.dim() != 2 or torch.is_autocast_enabled(input.device.type):
        return F.linear(input, weight, bias)
    out: Tensor = _Linear.apply(input, weight, bias)  # type: ignore[no-untyped-call]
    return out


class _Linear(torch.autograd.Function):
    """The linear layer x wᵀ + b."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.deferred = False  # see deferral.py
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
            for_weight = _WeightGradient.apply(rows, signals, skip)  # type: ignore[no-untyped-call]
        if ctx.needs_input_grad[2]:
            for_bias = signal.reshape(-1, signal.shape[-1]).sum(dim=0)
        return for_x, for_weight, for_bias


class _WeightGradient(torch.autograd.Function):
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
