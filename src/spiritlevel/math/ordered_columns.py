"""Factor columns of the softmax Hessian in the order of the probabilities: the largest part first.

With the classes of a sample sorted by p, let Q_j be the mass of all that are less likely than j:

    s_j = √(p_j Q_j / (p_j + Q_j)) · (e_j − Σ_{i>j} (p_i / Q_j) e_i)

The first m columns leave (diag π − ππᵀ) · Q, the Hessian of the other classes among themselves,
with their distribution π. Columns that make the same m classes exact cannot leave less, since this
is the Schur complement. Every entry is a product, so nothing cancels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .curvature import SignedColumn, SoftmaxCurvature


class OrderedColumns:
    """s_1 … s_{C−1} of every sample, one by one or with random signs."""

    def __init__(self, curvature: SoftmaxCurvature) -> None:
        """Sort the classes; of equal ones the first comes first."""
        self.order = curvature.logits.argsort(dim=1, descending=True, stable=True)
        self._p = curvature.p.gather(1, self.order)
        below = _sums_behind(self._p)
        self._below = torch.where(below == 0, torch.ones_like(below), below)  # then p behind is 0
        both = torch.where(below == 0, torch.ones_like(below), self._p + below)
        self._sizes = (curvature.mass[:, None] * (self._p / both) * below).sqrt()
        self._plus = torch.ones_like(curvature.mass)

    def column(self, rank: int) -> SignedColumn:
        """s_j of the class with this rank, from 0."""
        ranked = torch.zeros_like(self._p)
        size, below = self._sizes[:, rank, None], self._below[:, rank, None]
        ranked[:, rank + 1 :] = -size * (self._p[:, rank + 1 :] / below)
        ranked[:, rank] = size[:, 0]
        return self._by_class(ranked), self._plus

    def probe(self, signs: Tensor, first: int) -> SignedColumn:
        """Σ r_j s_j over the columns from rank `first` on; `signs` are by class, shape (N, C)."""
        drawn = self._sizes * signs.gather(1, self.order)
        drawn[:, :first] = 0.0
        steps = drawn / self._below
        before = torch.cat([torch.zeros_like(steps[:, :1]), steps[:, :-1].cumsum(dim=1)], dim=1)
        return self._by_class(drawn - self._p * before), self._plus

    def left(self, ranks: list[int]) -> Tensor:
        """The trace that the columns before each of these ranks leave, shape (N, ranks)."""
        behind = _sums_behind(self._p.square())
        norms = self._sizes.square() * (1.0 + behind / self._below / self._below)
        return norms.flip(1).cumsum(dim=1).flip(1)[:, ranks]

    def _by_class(self, ranked: Tensor) -> Tensor:
        return torch.zeros_like(ranked).scatter(1, self.order, ranked)


def _sums_behind(values: Tensor) -> Tensor:
    """Σ_{i>j} of each row, summed from the end."""
    sums = values.flip(1).cumsum(dim=1).flip(1)
    return torch.cat([sums[:, 1:], torch.zeros_like(sums[:, :1])], dim=1)
