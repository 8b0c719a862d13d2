"""The softmax Hessian in a form whose gradients lose no digits either.

`SoftmaxCurvature` keeps the digits of every value. Its gradient in the largest logit would still be
a difference of nearly equal numbers, since it goes through the largest probability; and √p has no
gradient where p underflows to 0. Written in the gaps z_i − z_top ≤ 0 both are products only.
"""

from __future__ import annotations

from collections.abc import Iterator

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
