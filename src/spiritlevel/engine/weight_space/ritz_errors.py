"""How far eigenvalues may be from the Ritz values that Lanczos has for them.

With a residual r there is an eigenvalue within r of a Ritz value, and within r²/gap if no other one
is nearer than the gap, for which there are only the other Ritz values to go by.

A small residual shows that an eigenvalue is near, not that it is the extreme one: the start may
have had little of that eigenvector. How little, is known of a random start. With HQᵀ = QᵀT + RᵀC
and the start rows E in the coordinates of the basis, an eigenvalue λ beyond all Ritz values and its
eigenvector x, of length 1, satisfy

    E Q x = E (λ − T)⁻¹ Cᵀ R x,   so   ‖E Q x‖ ≤ ‖E (λ − T)⁻¹ Cᵀ‖.

The right side falls as λ moves away. With a given probability the left side is at least as large
as random rows make it, which bounds λ. For one start row this is the bound of van Dorsselaer,
Hochstenbach and van der Vorst (SIAM J. Matrix Anal. Appl. 22, 2000). Restarts are no exception: of
a Ritz vector u that is dropped, with Ritz value θ and column c of C, uᵀx = cᵀRx / (λ − θ) is still
known from the rows R, which stay in the basis.
"""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

CONFIDENCE = 0.95
POINTS = 64  # of the two grids on which the bound is found
FARTHEST = 200  # doublings of the first guess: any finite matrix is bounded by then


@dataclasses.dataclass(frozen=True)
class _Restart:
    """What was known of H when the basis was compressed: its Ritz values and vectors."""

    values: Tensor  # shape: (m,)
    vectors: Tensor  # shape: (m, m)
    kept: Tensor  # indices of the Ritz vectors that stayed
    coupling: Tensor  # C times the vectors, shape: (c, m)


class ExtremeBound:
    """The bound for one Lanczos run, through all of its restarts.

    Args:
        block: Start rows.
        size: Entries of each.
        confidence: Probability, over normal start rows, with which the bound holds.
    """

    def __init__(self, block: int, size: int, confidence: float) -> None:
        self._block = block
        self._least = least_part(block, size, 1.0 - confidence)
        self._restarts: list[_Restart] = []

    def restarted(self, values: Tensor, vectors: Tensor, kept: Tensor, coupling: Tensor) -> None:
        """The basis was replaced by its Ritz vectors `kept`, and by the rows beyond it."""
        self._restarts.append(_Restart(values, vectors, kept, coupling @ vectors))

    def beyond(
        self, values: Tensor, vectors: Tensor, coupling: Tensor, sign: int, round_off: float
    ) -> float:
        """How far the largest eigenvalue (sign 1) or the smallest (−1) may be beyond its value.

        `values` and `vectors` are the Ritz pairs, in ascending order; `coupling` is C.
        """
        if not len(coupling) or not round_off:
            return 0.0  # an invariant subspace, which has a part of every eigenvector; or H = 0
        if not self._least:
            return math.inf
        edge = float(values[-1] if sign > 0 else values[0])

        def inside(distances: Tensor) -> Tensor:
            """Whether an eigenvalue at these distances would have shown."""
            there = edge + sign * distances
            return self._reach(there, values, vectors, coupling @ vectors) < self._least

        doubled = round_off * 2.0 ** torch.arange(FARTHEST + 2).double()
        shown = inside(doubled).nonzero()
        number = int(shown[0]) if len(shown) else FARTHEST + 1
        if number == 0:
            return round_off
        low, high = doubled[number - 1 : number + 1].tolist()
        grid = torch.logspace(math.log2(low), math.log2(high), POINTS, base=2).double()
        outside = (~inside(grid)).nonzero()
        return float(grid[min(int(outside[-1]) + 1, POINTS - 1)]) if len(outside) else high

    def _reach(self, there: Tensor, values: Tensor, vectors: Tensor, coupling: Tensor) -> Tensor:
        """‖E (λ − T)⁻¹ Cᵀ‖ for each λ of `there`; `coupling` is C times the Ritz vectors."""
        along = torch.eye(self._block).double().expand(len(there), -1, -1)  # columns E
        for last in self._restarts:
            ritz = last.vectors[: along.shape[1]].T @ along
            gone = torch.ones(len(last.values), dtype=torch.bool)
            gone[last.kept] = False
            parts = last.coupling[:, gone] / (there[:, None] - last.values[gone])[:, None]
            along = torch.cat([ritz[:, last.kept], parts @ ritz[:, gone]], dim=1)
        inside, ahead = along[:, : len(values)], along[:, len(values) :]
        ritz = vectors[: inside.shape[1]].T @ inside
        reach = (coupling / (there[:, None] - values)[:, None]) @ ritz
        if ahead.shape[1]:  # right after a restart the rows beyond are not in the basis yet
            reach += ahead
        return torch.linalg.matrix_norm(reach, 2)


def gaps(values: Tensor) -> Tensor:
    """The distance of each of the ascending values to the nearest other one; 0 if it is alone."""
    if len(values) == 1:
        return torch.zeros_like(values)
    between = values.diff()
    return torch.minimum(torch.cat([between[:1], between]), torch.cat([between, between[-1:]]))


def least_part(block: int, size: int, probability: float) -> float:
    """A length that a unit vector's part in a random subspace falls short of so rarely.

    The square of this part has a beta distribution, whose density is at most t^(b/2 − 1) / B. In
    one dimension that is nearly exact, in more it is cautious.

    >>> round(least_part(1, 10_000, 0.05) * 100, 4)  # of a normal number: 0.0627
    0.0627
    """
    a, b = block / 2, (size - block) / 2
    if b < 1:
        return 0.0  # one step from the whole space
    log_beta = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
    return math.exp((math.log(probability * a) + log_beta) / (2 * a))
