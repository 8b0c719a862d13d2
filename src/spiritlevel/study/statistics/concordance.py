"""Which pairs of points are in the same order in two columns, without a matrix of all pairs.

For weights c, the sum over all ordered pairs is

    S(c) = Σ_i Σ_j c_i c_j · sign(x_i − x_j) · sign(y_i − y_j)

Both orders are cut into blocks of about √n points, which makes a grid of cells. Pairs in different
columns and rows of the grid need only the weight of each cell. Pairs within a column, and within
a row, are counted block by block. Work grows as n·√n for each row of weights, memory as n.
"""

from __future__ import annotations

import dataclasses
import math

from .points import Array, Indices, numpy, signs

SMALLEST = 64  # points of a block; 1.3·√n beyond about 2,400 points balances blocks and cells


@dataclasses.dataclass(frozen=True)
class Ties:
    """Points with equal values: their order by value, and where each group starts in it."""

    order: Indices
    starts: Indices
    group: Indices  # of each point, in the original order

    @classmethod
    def of(cls, *columns: Array) -> Ties:
        """Groups of points that are equal in all columns, sorted by the first, then the next."""
        np = numpy()
        order = np.lexsort(columns[::-1])
        changes = np.zeros(max(0, len(order) - 1), dtype=bool)
        for column in columns:
            changes |= column[order[1:]] != column[order[:-1]]
        first = np.concatenate([np.ones(min(1, len(order)), dtype=bool), changes])
        group = np.empty(len(order), dtype=np.intp)
        group[order] = np.cumsum(first) - 1
        return cls(order, np.flatnonzero(first), group)

    def sums(self, weights: Array) -> Array:
        """Sum of the weights in each group, for each row."""
        by_value = weights.take(self.order, axis=1)
        if len(self.starts) == len(self.order):
            return by_value
        sums: Array = numpy().add.reduceat(by_value, self.starts, axis=1)
        return sums

    def squares(self, weights: Array) -> Array:
        """Σ (weight of the group)²: the weight of all tied pairs, each point with itself too."""
        in_groups = weights if len(self.starts) == len(self.order) else self.sums(weights)
        squares: Array = numpy().einsum("ij,ij->i", in_groups, in_groups)
        return squares

    @property
    def sizes(self) -> Array:
        """The number of points in the group of each point."""
        np = numpy()
        ends = np.append(self.starts[1:], len(self.order))
        return (ends - self.starts)[self.group]


class Concordance:
    """The pairs of two columns; prepared once, asked for many rows of weights.

    Points that are equal in one column are put into the order of the other, so that there are no
    ties to look after. Their pairs then count as concordant, and are taken off at the end.
    """

    def __init__(self, x: Array, y: Array) -> None:
        np = numpy()
        self.x, self.y, self.both = Ties.of(x), Ties.of(y), Ties.of(x, y)
        n = len(x)
        size = max(SMALLEST, math.ceil(1.3 * math.sqrt(n)))
        self._orders = self.both.order, np.lexsort((np.arange(n), x, y))
        places = [np.argsort(order) for order in self._orders]  # of each point, in x and in y
        across, up = (place // size for place in places)
        self._side = math.ceil(n / size)
        self._cell = across * self._side + up  # of each point
        self._cells = Ties.of(self._cell)
        self._filled = self._cell[self._cells.order[self._cells.starts]]  # the others are empty
        self._signs = signs(np.arange(self._side)[:, None], np.arange(self._side))
        self._parts = [slice(start, start + size) for start in range(0, n, size)]
        self._columns = [_pairs(places[1][self._orders[0][part]]) for part in self._parts]
        self._rows = []
        for part in self._parts:
            points = self._orders[1][part]
            apart = np.not_equal.outer(across[points], across[points])  # else counted already
            self._rows.append(_pairs(places[0][points]) * apart)

    def total(self, weights: Array) -> Array:
        """S(c) for each row of weights; exact where these are whole numbers."""
        np = numpy()
        weights = np.asarray(weights, dtype=float)
        cells = self._weights_of_cells(weights)
        strict = (cells * self._of_cells(cells)).sum(axis=(1, 2))
        for order, blocks in zip(self._orders, (self._columns, self._rows), strict=True):
            by_order = weights.take(order, axis=1)
            for part, block in zip(self._parts, blocks, strict=True):
                strict += ((by_order[:, part] @ block) * by_order[:, part]).sum(axis=1)
        tied = self.x.squares(weights) + self.y.squares(weights) - self.both.squares(weights)
        return strict - (tied - (weights**2).sum(axis=1))

    def of_points(self) -> Array:
        """Σ_j sign(x_i − x_j) · sign(y_i − y_j) for each point i."""
        np = numpy()
        cells = self._weights_of_cells(np.ones((1, len(self._cell))))
        strict = self._of_cells(cells).ravel()[self._cell]
        for order, blocks in zip(self._orders, (self._columns, self._rows), strict=True):
            for part, block in zip(self._parts, blocks, strict=True):
                strict[order[part]] += block.sum(axis=0)
        return strict - (self.x.sizes + self.y.sizes - self.both.sizes - 1)

    def _weights_of_cells(self, weights: Array) -> Array:
        cells = numpy().zeros((len(weights), self._side**2))
        cells[:, self._filled] = self._cells.sums(weights)
        return cells.reshape(len(weights), self._side, self._side)

    def _of_cells(self, cells: Array) -> Array:
        """For each cell, the weight of cells in the same order less that of cells in the other."""
        return self._signs @ cells @ self._signs.T


def agreement(x: Array, y: Array) -> float:
    """Concordant less discordant pairs, each counted in both directions: S(c) for c = 1."""
    return float(Concordance(x, y).total(numpy().ones((1, len(x))))[0])


def _pairs(places: Array) -> Array:
    """For points in the order of one column, and their places in the other: +1 if i, j agree."""
    np = numpy()
    here = np.arange(len(places))
    return signs(places[:, None], places) * signs(here[:, None], here)
