"""Head penalties under the softmax with their gradients written out.

Autograd would take some two hundred small operations, which weigh as much as the step of a small
network. The gradient of a function f of p in the logits is p_j (G_j − Σ p_i G_i), G = ∂f/∂p. Here
G is taken relative to that of the largest class, and p without the largest is `tail`: then every
factor is small where the network is certain, and no digits cancel.

Each function returns the value summed over rows and its gradients in logits, features and weight
(None where it does not depend on them). `mass` is what a row counts; None is 1 for each.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Parts = tuple[Tensor, Tensor, Tensor, Tensor | None]  # value, ∂logits, ∂features, ∂weight


@dataclasses.dataclass(frozen=True)
class _Softmax:
    top: Tensor  # the largest class of each row, shape (N, 1)
    p_top: Tensor  # shape (N, 1)
    rest: Tensor  # 1 − p_top without cancellation, shape (N, 1)
    tail: Tensor  # p, 0 at the largest

    @classmethod
    def of(cls, logits: Tensor) -> _Softmax:
        largest, top = logits.max(dim=1, keepdim=True)
        odds = (logits - largest).exp_().scatter_(1, top, 0.0)
        against = odds.sum(dim=1, keepdim=True)
        p_top = 1.0 / (1.0 + against)
        return cls(top, p_top, against * p_top, odds.mul_(p_top))

    def in_logits(self, slope: Tensor, factor: Tensor | float) -> Tensor:
        """The gradient in the logits times a factor a row; `slope` is G − G_top, of any top."""
        mean = torch.linalg.vecdot(self.tail, slope)[:, None]
        found = (slope - mean).mul_(self.tail).scatter_(1, self.top, -self.p_top * mean)
        return found.mul_(factor)


def _counted(x: Tensor, mass: Tensor | None) -> Tensor:
    return x if mass is None else mass[:, None] * x


def trace(logits: Tensor, features: Tensor, weight: Tensor, mass: Tensor | None) -> Parts:
    """Σ mass g ‖φ‖² with the Gini term g = 1 − Σ p²."""
    p = _Softmax.of(logits)
    gini = p.rest * (2.0 - p.rest) - torch.linalg.vecdot(p.tail, p.tail)[:, None]
    squares = _counted(torch.linalg.vecdot(features, features)[:, None], mass)
    slope = 2.0 * (p.p_top - p.tail)
    value = (squares * gini).sum()
    return value, p.in_logits(slope, squares), features * _counted(2.0 * gini, mass), None


def kappa(logits: Tensor, features: Tensor, weight: Tensor, mass: Tensor | None) -> Parts:
    """Σ mass ‖φ‖² (Σ p_i ‖w_i‖² − ‖Σ p_i w_i‖²): the variance of the rows of W under p.

    Everything is said in the inner products of the rows, which are few; u_i is w_i − w_top.
    """
    p = _Softmax.of(logits)
    top = p.top[:, 0]
    squares = _counted(torch.linalg.vecdot(features, features)[:, None], mass)
    weight = weight - weight.mean(dim=0)  # a shift of all rows changes nothing but the rounding
    inner = weight @ weight.T
    lengths, at_top = inner.diagonal(), inner.index_select(0, top)
    own = lengths.index_select(0, top)[:, None]  # ‖w_top‖²
    shares = p.tail.scatter(1, p.top, -p.rest)  # of Σ p_i u_i, in the rows of W
    along = shares @ inner  # ⟨w_i, Σ p_j u_j⟩
    along -= along.gather(1, p.top)  # ⟨u_i, Σ p_j u_j⟩
    apart = torch.add(lengths + own, at_top, alpha=-2.0)  # ‖u_i‖²
    variance = torch.linalg.vecdot(p.tail, apart - along)[:, None]
    value = (squares * variance).sum()
    in_logits = p.in_logits(torch.add(apart, along, alpha=-2.0), squares)
    # Σ_n p_i (w_i − w̄_n) as a matrix times W; of the largest class w_top − w̄ = −Σ p_j u_j
    counted = squares * p.tail
    mixing = counted.sum(dim=0).diag() - counted.T @ p.tail.scatter(1, p.top, p.p_top)
    mixing.index_add_(0, top, shares.mul_(squares * p.p_top), alpha=-1.0)
    return value, in_logits, features * _counted(2.0 * variance, mass), 2.0 * mixing @ weight


def trace_squared(logits: Tensor, features: Tensor, weight: Tensor, mass: Tensor | None) -> Parts:
    """Σ_{n,m} mass_n mass_m (φ_n·φ_m)² Tr(A_n A_m).

    Tr(A A') = Σ d_i d'_i + Σ_{i≠j} x_i x_j with x = p p' and d = p − p²; and x · 1 = p·p' =: X.
    G of a row is 2 Σ_m κ_nm (d' + 2 (X − p) p'), where X − p_top is formed apart.
    """
    p = _Softmax.of(logits)
    top = p.top[:, 0]
    both = p.tail.scatter(1, p.top, p.p_top)
    diagonal = (p.tail * (1.0 - p.tail)).scatter_(1, p.top, p.p_top * p.rest)
    squared = p.tail.square()
    products = features @ features.T
    factors = products if mass is None else mass[:, None] * products * mass
    weights = factors * products
    tails, overlap = p.tail @ p.tail.T, both @ both.T
    # Pairs i ≠ j of x: both in the tails, one of them at a largest class, or both at different ones
    cross = p.p_top * p.tail.index_select(1, top).T
    traces = torch.addmm(diagonal @ diagonal.T, squared, squared.T, alpha=-1.0)
    traces.addcmul_(tails, overlap, value=2.0).addcmul_(tails, tails, value=-1.0)
    traces.addcmul_(cross, cross.T, value=2.0)
    value = torch.dot(weights.flatten(), traces.flatten())

    # X − p_top at the largest class of row n. Where row m shares it, p_top (1 − p'_top) comes off.
    same = (top == top[:, None]).to(tails.dtype)
    apart = same * p.rest.T + (1.0 - same)
    less_top = (tails + cross).add_(cross.T).addcmul_(p.p_top, apart, value=-1.0)
    at_top = diagonal.index_select(1, top).T
    at_top = torch.addcmul(at_top, less_top, both.index_select(1, top).T, value=2.0)
    slope = torch.addmm(weights @ diagonal, weights * overlap, both, alpha=2.0)
    slope.addcmul_(p.tail, weights @ both, value=-2.0)
    slope -= torch.linalg.vecdot(weights, at_top)[:, None]
    in_features = (factors * traces) @ features
    return value, p.in_logits(slope, 2.0), in_features.mul_(4.0), None


class _Known(torch.autograd.Function):
    """A value whose gradients were found with it."""

    @staticmethod
    def forward(
        ctx: Any,
        find: Callable[[Tensor, Tensor, Tensor, Tensor | None], Parts],
        logits: Tensor,
        features: Tensor,
        weight: Tensor,
        mass: Tensor | None,
        scale: Tensor | float,
    ) -> Tensor:
        value, in_logits, in_features, in_weight = find(logits, features, weight, mass)
        found = [in_logits, in_features] + ([] if in_weight is None else [in_weight])
        ctx.scale = scale
        ctx.save_for_backward(*found)
        return value * scale

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        found = ctx.saved_tensors
        factor = grads[0] * ctx.scale
        scaled = [factor * part for part in found] + [None] * (3 - len(found))
        return (None, *scaled, None, None)


FORMS = {"trace": trace, "kappa": kappa, "trace_squared": trace_squared}


def softmax_head(
    kind: str,
    logits: Tensor,
    features: Tensor,
    weight: Tensor,
    mass: Tensor | None,
    scale: Tensor | float,
) -> Tensor:
    """One of FORMS times `scale`, differentiable once in logits, features and weight."""
    found: Tensor = _Known.apply(FORMS[kind], logits, features, weight, mass, scale)  # type: ignore[no-untyped-call]
    return found
