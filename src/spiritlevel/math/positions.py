"""Outputs with one prediction per position: tokens of a sequence, pixels of an image.

Rows are positions, sample by sample. A row holds the classes of one position, whichever dimension
of the outputs they were in.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import torch
from torch import Tensor

from .curvature import DiagonalCurvature, RowCurvature, SignedColumn


@dataclasses.dataclass(frozen=True)
class Positions:
    """How outputs of shape (N, …) hold the classes of each position: in dimension `class_dim`."""

    shape: tuple[int, ...]  # of one sample
    class_dim: int  # counted within the batch: 1 or more

    @property
    def num_classes(self) -> int:
        """The length of a row."""
        return self.shape[self.class_dim - 1]

    @property
    def count(self) -> int:
        """The number of positions per sample."""
        return math.prod(self.shape) // self.num_classes

    def rows(self, x: Tensor) -> Tensor:
        """(N, …) or (N, elements) as (N·positions, classes).

        >>> images = torch.arange(8).reshape(1, 2, 2, 2)         # (N, C, H, W)
        >>> Positions((2, 2, 2), 1).rows(images).tolist()
        [[0, 4], [1, 5], [2, 6], [3, 7]]
        """
        return x.reshape(-1, *self.shape).movedim(self.class_dim, -1).reshape(-1, self.num_classes)

    def flat(self, rows: Tensor) -> Tensor:
        """The inverse of `rows`: (N, elements), elements in the order of the outputs."""
        others = [*self.shape[: self.class_dim - 1], *self.shape[self.class_dim :]]
        x = rows.reshape(-1, *others, self.num_classes).movedim(-1, self.class_dim)
        return x.flatten(1)

    def by_sample(self, values: Tensor) -> Tensor:
        """One value per row, as (N, positions)."""
        return values.reshape(-1, self.count)


class PositionCurvature:
    """Block diagonal: each position of a sample has its own Hessian in its own outputs."""

    def __init__(self, rows: RowCurvature, positions: Positions) -> None:
        """`rows` holds one Hessian per position."""
        self.rows = rows
        self.positions = positions

    @property
    def num_columns(self) -> int:
        """The columns of all positions of a sample together."""
        return self.rows.num_columns * self.positions.count

    @property
    def num_signs(self) -> int:
        """Random signs that `probe` takes per sample."""
        return self.rows.num_signs * self.positions.count

    def trace(self) -> Tensor:
        """Σ over the positions of Tr A."""
        return self.positions.by_sample(self.rows.trace()).sum(dim=1)

    def apply(self, v: Tensor) -> Tensor:
        """A_n v_n for v of shape (N, elements)."""
        return self.positions.flat(self.rows.apply(self.positions.rows(v)))

    def columns(self) -> Iterator[SignedColumn]:
        """The columns of one position after the other, with zeros at all other positions."""
        count = self.positions.count
        for column, sign in self.rows.columns():
            blocks = column.unflatten(0, (-1, count))  # (N, positions, classes)
            signs = sign.unflatten(0, (-1, count))
            for position in range(count):
                alone = torch.zeros_like(blocks)
                alone[:, position] = blocks[:, position]
                yield self.positions.flat(alone.flatten(0, 1)), signs[:, position]

    def probe(self, signs: Tensor) -> list[SignedColumn]:
        """Σ_k r_k s_k over all columns of all positions."""
        drawn = self.rows.probe(signs.reshape(-1, self.rows.num_signs))
        return [
            (self.positions.flat(column), self.positions.by_sample(sign)[:, 0])
            for column, sign in drawn
        ]


OutputCurvature = RowCurvature | PositionCurvature


def row_curvature(curvature: OutputCurvature, positions: Positions) -> RowCurvature | None:
    """The Hessians by position; None for a loss that ties the positions of a sample together."""
    if isinstance(curvature, PositionCurvature):
        return curvature.rows
    if positions.count == 1:
        return curvature
    if isinstance(curvature, DiagonalCurvature):
        return DiagonalCurvature(positions.rows(curvature.diagonal))
    return None
