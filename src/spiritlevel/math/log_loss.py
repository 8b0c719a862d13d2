"""Cross-entropy without cancellation: −log p of the most likely class, and its derivatives.

The gradient of log Σ exp(z) is p. If a network is confident and right, torch's losses make theirs,
and the second derivative, from differences of numbers close to 1. Here 1 − p_top is the sum of all
other probabilities, and derivatives of any order are made of these. What a loss has besides is
linear in z. Each function keeps nothing for the backward pass but its gradient, which is an output
of it, and so can be differentiated too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def minus_log_largest(logits: Tensor) -> tuple[Tensor, Tensor]:
    """−log p of the largest class of every row, shape (N,), and these classes, shape (N, 1).

    It can be differentiated any number of times.

    >>> value, top = minus_log_largest(torch.tensor([[0.0, 50.0]]).double())
    >>> f"{float(value):.4g}", top.tolist()
    ('1.929e-22', [[1]])
    """
    top = logits.detach().argmax(dim=1, keepdim=True)
    value, _ = _MinusLogLargest.apply(logits, top)  # type: ignore[no-untyped-call]
    return value, top


class _MinusLogLargest(torch.autograd.Function):
    """The value and its gradient: p, and −(1 − p_top) at the largest class."""

    @staticmethod
    def forward(logits: Tensor, top: Tensor) -> tuple[Tensor, Tensor]:
        slope = logits.softmax(dim=1).scatter_(1, top, 0.0)
        rest = slope.sum(dim=1, keepdim=True).neg_()  # p_top − 1, without the cancellation
        return rest.log1p().neg_().squeeze(1), slope.scatter_(1, top, rest)

    @staticmethod
    def setup_context(
        ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor]
    ) -> None:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(inputs[1], output[1])
        ctx.save_for_forward(inputs[1], output[1])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, None]:
        top, slope = ctx.saved_tensors
        of_value, of_slope = grads
        found = None if of_value is None else of_value[:, None] * slope
        if of_slope is not None:
            curved = _curvature_times(slope, top, of_slope)[0]
            found = curved if found is None else found + curved
        return found, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int, int], logits: Tensor, top: Tensor
    ) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        batched = zip((logits, top), in_dims, strict=True)
        rows = (tensor.movedim(dim, 0).flatten(0, 1) for tensor, dim in batched)
        value, slope = _MinusLogLargest.apply(*rows)  # type: ignore[no-untyped-call]
        parts = (info.batch_size, -1)
        return (value.unflatten(0, parts), slope.unflatten(0, parts)), (0, 0)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> tuple[Tensor, Tensor]:
        top, slope = ctx.saved_tensors
        curved, mean = _curvature_times(slope, top, tangents[0])
        return mean.squeeze(1), curved


def minus_log_larger(logits: Tensor) -> Tensor:
    """−log of the larger of σ(z) and σ(−z): as above, with the classes 0 and z of every element.

    >>> f"{float(minus_log_larger(torch.tensor(50.0).double())):.4g}"
    '1.929e-22'
    """
    value: Tensor = _MinusLogLarger.apply(logits)[0]  # type: ignore[no-untyped-call]
    return value


class _MinusLogLarger(torch.autograd.Function):
    """log(1 + exp(−|z|)) and its gradient, minus or plus σ(−|z|)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(logits: Tensor) -> tuple[Tensor, Tensor]:
        odds = logits.abs().neg_().exp_()
        slope = odds / (1.0 + odds)
        return odds.log1p(), torch.where(logits >= 0, -slope, slope)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(output[1])
        ctx.save_for_forward(output[1])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Tensor | None:
        (slope,) = ctx.saved_tensors
        of_value, of_slope = grads
        found = None if of_value is None else of_value * slope
        if of_slope is not None:
            curved = slope.abs() * (1.0 - slope.abs()) * of_slope
            found = curved if found is None else found + curved
        return found

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> tuple[Tensor, Tensor]:
        (slope,) = ctx.saved_tensors
        return slope * tangents[0], slope.abs() * (1.0 - slope.abs()) * tangents[0]


def _curvature_times(slope: Tensor, top: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """(diag p − p pᵀ) v, and ⟨slope, v⟩ of shape (N, 1).

    Neither changes if v is shifted so that it is 0 at the largest class, and then nothing cancels.
    """
    products = slope * (v - v.gather(1, top))
    mean = products.sum(dim=1, keepdim=True)
    return (products - slope * mean).scatter_add(1, top, -mean), mean
