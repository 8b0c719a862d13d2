"""Cross-entropy without cancellation: log Σ exp(z) − max z and its derivatives of any order.

Its gradient is p, less 1 at the largest class. If a network is confident, torch's log_softmax makes
both this gradient and the second derivative from differences of numbers close to 1. Here 1 − p_top
is the sum of all other probabilities, and every derivative is made of these.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def log_sum_above_largest(logits: Tensor) -> tuple[Tensor, Tensor]:
    """−log p of the largest class of every row, shape (N,), and these classes, shape (N, 1).

    It can be differentiated any number of times.

    >>> value, top = log_sum_above_largest(torch.tensor([[0.0, 50.0]]).double())
    >>> f"{float(value):.4g}", top.tolist()
    ('1.929e-22', [[1]])
    """
    top = logits.detach().argmax(dim=1, keepdim=True)
    value, _ = _LogSumAboveLargest.apply(logits, top)  # type: ignore[no-untyped-call]
    return value, top


class _LogSumAboveLargest(torch.autograd.Function):
    """The value and its gradient, which is an output too: so its derivative can be given as well.

    Nothing is kept for the backward pass but that gradient.
    """

    @staticmethod
    def forward(logits: Tensor, top: Tensor) -> tuple[Tensor, Tensor]:
        slope = logits.softmax(dim=1).scatter_(1, top, 0.0)
        rest = slope.sum(dim=1, keepdim=True)  # 1 − p_top, without the cancellation
        return -torch.log1p(-rest).squeeze(1), slope.scatter_(1, top, -rest)

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
        value, slope = _LogSumAboveLargest.apply(*rows)  # type: ignore[no-untyped-call]
        parts = (info.batch_size, -1)
        return (value.unflatten(0, parts), slope.unflatten(0, parts)), (0, 0)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> tuple[Tensor, Tensor]:
        top, slope = ctx.saved_tensors
        curved, mean = _curvature_times(slope, top, tangents[0])
        return mean.squeeze(1), curved


def _curvature_times(slope: Tensor, top: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """(diag p − p pᵀ) v, and ⟨slope, v⟩ of shape (N, 1).

    Neither changes if v is shifted so that it is 0 at the largest class, and then nothing cancels.
    """
    products = slope * (v - v.gather(1, top))
    mean = products.sum(dim=1, keepdim=True)
    return (products - slope * mean).scatter_add(1, top, -mean), mean
