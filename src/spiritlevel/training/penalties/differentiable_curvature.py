"""The softmax Hessian in a form whose gradients lose no digits either.

`SoftmaxCurvature` keeps the digits of every value. Its gradient in the largest logit would still be
a difference of nearly equal numbers, since it goes through the largest probability; and √p has no
gradient where p underflows to 0. Written in the gaps z_i − z_top ≤ 0 both are products only.

For head penalties the gradients are written out. Autograd would take some two hundred small
operations, which take as long as the step of a small network. The gradient of a function f of p in
the logits is p_j (G_j − Σ p_i G_i), G = ∂f/∂p. Here G is taken relative to that of the largest
class, and p without the largest is `tail`: then every factor is small where the network is certain,
and no digits cancel.

Each kind has two functions. The first gives the value, summed over rows, and what the second needs
in the backward pass to compute the gradients in logits, features and weight (None: the value does
not depend on it). Factors are applied to rows, which costs less than applying them to each entry.
`mass` is the weight of each row; None is 1 for each.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...ground.errors import SpiritlevelError, brief
from ...math.curvature import SignedColumn, SoftmaxCurvature
from ...math.positions import OutputCurvature, PositionCurvature
from ...model.losses import BinaryCrossEntropy, CrossEntropy, Loss, MeanSquaredError


class GapSoftmax(SoftmaxCurvature):
    """mass_n · (diag p_n − p_n p_nᵀ) in a form that can be differentiated."""

    def __init__(self, logits: Tensor, mass: Tensor | None = None) -> None:
        """As for `SoftmaxCurvature`, which this replaces where gradients are wanted."""
        self.logits = logits
        largest, self.top = logits.max(dim=1, keepdim=True)
        gaps = logits - largest
        odds = gaps.exp().scatter(1, self.top, 0.0)  # p_i / p_top
        against = odds.sum(dim=1)
        self.p_top = 1.0 / (1.0 + against)
        self.rest = against * self.p_top
        self.tail = odds * self.p_top[:, None]
        self.p = self.tail.scatter(1, self.top, self.p_top[:, None])
        self.mass = torch.ones_like(self.p_top) if mass is None else mass
        self._gaps = gaps

    def columns(self) -> Iterator[SignedColumn]:
        """As in `SoftmaxCurvature`, without a division by 1 − p_top."""
        root_top, root_tail = self._roots()
        shares = self._gaps.scatter(1, self.top, -torch.inf).softmax(dim=1)  # p_i / (1 − p_top)
        taken = shares * (1.0 + root_top)
        sign, scale = torch.ones_like(self.mass), self.mass.sqrt()[:, None]
        for k in range(self.num_columns):
            index = k + (self.top <= k).long()
            root_k = root_tail.gather(1, index)
            column = (-taken * root_k).scatter_add(1, index, root_k)
            yield scale * column.scatter(1, self.top, root_top * root_k), sign

    def probe(self, signs: Tensor) -> list[SignedColumn]:
        """√p∘r − p (√p·r), as in `SoftmaxCurvature`."""
        root_top, root_tail = self._roots()
        x, x_top = root_tail * signs, root_top * signs.gather(1, self.top)
        others = x.sum(dim=1, keepdim=True)
        column = x - self.tail * (x_top + others)
        at_top = x_top * self.rest[:, None] - self.p_top[:, None] * others
        column = column.scatter(1, self.top, at_top)
        return [(self.mass.sqrt()[:, None] * column, torch.ones_like(self.mass))]

    def _roots(self) -> tuple[Tensor, Tensor]:
        """√p of the largest class, shape (N, 1), and of the others, 0 at the largest."""
        root_top = self.p_top.sqrt()[:, None]
        return root_top, (self._gaps / 2).exp().scatter(1, self.top, 0.0) * root_top


def differentiable_curvature(loss: Loss, outputs: Tensor, targets: Tensor) -> OutputCurvature:
    """∇²ℓ_n in the outputs, for the losses whose closed form is known."""
    if isinstance(loss, CrossEntropy):
        positions = loss.positions(outputs, targets)
        rows = positions.rows(outputs)
        masses = loss.row_masses(rows.detach(), loss.row_targets(targets, positions))
        inner = GapSoftmax(rows, masses)
        return inner if positions.count == 1 else PositionCurvature(inner, positions)
    if isinstance(loss, MeanSquaredError | BinaryCrossEntropy):
        return loss.curvature(outputs, targets)
    raise SpiritlevelError(
        "The 'loss' argument of this penalty must be 'cross_entropy', 'mse', 'bce' or the torch "
        f"module of one of them: its curvature is differentiated. Got {brief(loss.name)}. Use "
        "FlatnessPenalty, which takes any loss."
    )


ValueAndSaved = tuple[Tensor, tuple[Tensor, ...]]  # the value, and what its gradients need
Gradients = tuple[Tensor, Tensor, Tensor | None]  # in logits, features and weight


class _Softmax(NamedTuple):
    p: Tensor
    top: Tensor  # the largest class of each row, shape (N, 1)
    p_top: Tensor  # shape (N, 1)
    rest: Tensor  # 1 − p_top without cancellation, shape (N, 1)
    tail: Tensor  # p, 0 at the largest

    @classmethod
    def of(cls, logits: Tensor) -> _Softmax:
        p = logits.softmax(dim=1)
        p_top, top = p.max(dim=1, keepdim=True)
        tail = p.scatter(1, top, 0.0)
        return cls(p, top, p_top, tail.sum(dim=1, keepdim=True), tail)

    def spread(self) -> Tensor:
        """The diagonal p − p² of A = diag p − p pᵀ."""
        spread = torch.addcmul(self.tail, self.tail, self.tail, value=-1.0)
        return spread.scatter_(1, self.top, self.p_top * self.rest)


def _row_dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(dim=1, keepdim=True)


def _squares(features: Tensor, mass: Tensor | None) -> Tensor:
    lengths = torch.linalg.vector_norm(features, dim=1, keepdim=True)
    return _counted(lengths * lengths, mass)


def _counted(x: Tensor, mass: Tensor | None) -> Tensor:
    return x if mass is None else mass[:, None] * x


def _in_logits(p: Tensor, slope: Tensor, factor: Tensor) -> Tensor:
    """The gradient times a factor; `slope` is G − G_top, exactly 0 at the largest class."""
    products = p * slope
    return products.addcmul_(p, products.sum(dim=1, keepdim=True), value=-1.0).mul_(factor)


def trace(logits: Tensor, features: Tensor, weight: Tensor, mass: Tensor | None) -> ValueAndSaved:
    """Σ mass g ‖φ‖² with the Gini term g = 1 − Σ p²."""
    p = _Softmax.of(logits)
    gini = torch.addcmul(p.rest, p.p_top, p.rest) - _row_dot(p.tail, p.tail)
    squares = _squares(features, mass)
    saved = (p.p, p.p_top, squares, _counted(gini, mass), features)
    return (squares * gini).sum(), saved


def trace_gradients(factor: Tensor, *saved: Tensor) -> Gradients:
    """The gradients of `trace`, with G_i = −2 p_i."""
    p, p_top, squares, pull, features = saved
    in_logits = _in_logits(p, p_top - p, squares * factor)
    return in_logits, features * (pull * factor), None


def kappa(logits: Tensor, features: Tensor, weight: Tensor, mass: Tensor | None) -> ValueAndSaved:
    """Σ mass ‖φ‖² (Σ p_i ‖w_i‖² − ‖Σ p_i w_i‖²): the variance of the rows of W under p.

    As Σ_{i,j} p_i p_j ‖w_i − w_j‖² / 2 it has no digits to lose: what is certain meets only zeros.
    """
    p = logits.softmax(dim=1)
    weight = weight - weight[:1]  # a shift of all rows changes nothing but the rounding
    inner = weight @ weight.T
    halves = 0.5 * inner.diagonal()
    apart = p @ (halves[:, None] + halves).sub_(inner)  # Σ_j p_j ‖w_i − w_j‖² / 2
    variance, squares = _row_dot(p, apart), _squares(features, mass)
    saved = (p, apart, variance, squares, _counted(variance, mass), features, weight)
    return (squares * variance).sum(), saved


def kappa_gradients(factor: Tensor, *saved: Tensor) -> Gradients:
    """Half of G is `apart`, its mean the variance; in W it is 2 Σ mass ‖φ‖² (diag p − p pᵀ) W."""
    p, apart, variance, squares, pull, features, weight = saved
    minus = p * (-factor * squares)
    curvature = (minus.T @ p).fill_diagonal_(0.0)
    curvature.diagonal().copy_(curvature.sum(dim=0).neg_())
    return (variance - apart).mul_(minus), features * (pull * factor), curvature @ weight


def trace_squared(
    logits: Tensor, features: Tensor, weight: Tensor, mass: Tensor | None
) -> ValueAndSaved:
    """Σ_{n,m} mass_n mass_m (φ_n·φ_m)² Tr(A_n A_m).

    Tr(A A') = Σ d_i d'_i + Σ_{i≠j} x_i x_j with x = p p' and d = p − p²; and x · 1 = p·p' =: X.
    """
    p = _Softmax.of(logits)
    spread, squared = p.spread(), p.tail * p.tail
    tails, overlap = p.tail @ p.tail.T, p.p @ p.p.T
    # x at the largest class of row m, 0 where row n has the same
    cross = p.tail.index_select(1, p.top.view(-1)) * p.p_top.view(1, -1)
    # Pairs i ≠ j of x: both in the tails, one of them at a largest class, or both at different ones
    traces = (spread @ spread.T).addmm_(squared, squared.T, alpha=-1.0)
    traces.addcmul_(tails, overlap, value=2.0).addcmul_(tails, tails, value=-1.0)
    traces.addcmul_(cross, cross.T, value=2.0)
    products = features @ features.T
    factors = products if mass is None else mass[:, None] * products * mass
    weights, pairs, less_top = factors * products, factors * traces, cross.add_(tails)
    value = torch.dot(products.view(-1), pairs.view(-1))
    return value, (p.top, p.p, p.p_top, spread, weights, overlap, less_top, pairs, features)


def trace_squared_gradients(factor: Tensor, *saved: Tensor) -> Gradients:
    """A quarter of G is Σ_m κ_nm (d' / 2 + (X − p) p').

    At the largest class X − p cancels: there it is `less_top`, Σ p p' of the others, − p (1 − p').
    """
    top, p, p_top, spread, weights, overlap, less_top, pairs, features = saved
    slope = weights @ spread
    spread_top = slope.gather(1, top)
    at_top = ((weights * less_top) @ p).gather(1, top)
    at_top.addcmul_(p_top, spread_top, value=-1.0).add_(spread_top, alpha=0.5)
    slope.addmm_(weights * overlap, p, beta=0.5).addcmul_(p, weights @ p, value=-1.0)
    slope.sub_(at_top).scatter_(1, top, 0.0)
    return _in_logits(p, slope, factor), (pairs * factor) @ features, None


# value, gradients, and what the gradients are to be multiplied by
FORMS: dict[str, tuple[Callable[..., ValueAndSaved], Callable[..., Gradients], float]] = {
    "trace": (trace, trace_gradients, 2.0),
    "kappa": (kappa, kappa_gradients, 2.0),
    "trace_squared": (trace_squared, trace_squared_gradients, 4.0),
}


def _without_autocast(device: str) -> contextlib.AbstractContextManager[Any]:
    """8 bits cannot hold p − p². Asking first is cheaper than entering torch.autocast."""
    if torch.is_autocast_enabled(device):
        return torch.autocast(device, enabled=False)
    return contextlib.nullcontext()


class _SoftmaxHead(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        kind: str,
        logits: Tensor,
        features: Tensor,
        weight: Tensor,
        mass: Tensor | None,
        scale: Tensor | float,
    ) -> Tensor:
        compute, ctx.gradients, multiple = FORMS[kind]
        value, saved = compute(logits, features, weight, mass)
        ctx.factor = multiple * scale
        ctx.save_for_backward(*saved)
        return value * scale

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (outer,) = grads
        with _without_autocast(outer.device.type):
            gradients = ctx.gradients(outer * ctx.factor, *ctx.saved_tensors)
        return (None, *gradients, None, None)


def softmax_head(
    kind: str,
    logits: Tensor,
    features: Tensor,
    weight: Tensor,
    mass: Tensor | None,
    scale: Tensor | float,
) -> Tensor:
    """One of FORMS times `scale`, to be differentiated once.

    Under autocast this is still computed in float32.
    """
    device = logits.device.type
    if torch.is_autocast_enabled(device):
        wide = torch.promote_types(logits.dtype, torch.float32)
        parts = logits.to(wide), features.to(wide), weight.to(wide)
        with _without_autocast(device):
            return softmax_head(kind, *parts, mass, scale)
    value: Tensor = _SoftmaxHead.apply(  # type: ignore[no-untyped-call]
        kind, logits, features, weight, mass, scale
    )
    return value
