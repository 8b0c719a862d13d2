"""Pairs of runs across a change of one hyperparameter, and how often a measure is wrong about them.

With many seeds there are far more pairs than runs. So pairs are never listed for large cells: where
all weigh the same, sorting counts them; otherwise they are weighed a part at a time.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Hashable, Sequence
from typing import Literal

from ._arrays import Array, numpy, signs
from .concordance import agreement
from .neighbours import Grid

Pooling = Literal["change", "cell"]
PairWeight = Callable[[Array], Array]  # of the difference of two targets
SMALL = 1 << 12  # pairs of two cells that are listed
AT_ONCE = 1 << 20  # pairs that are compared together
Error = tuple[float, int, float, float]


@dataclasses.dataclass(frozen=True)
class Change:
    """From one value of a hyperparameter to another; the runs on both sides, cell by cell."""

    first: Hashable
    second: Hashable
    others: str  # hyperparameters held fixed; "" if pooled
    cells: list[tuple[Array, Array]]


@dataclasses.dataclass
class _Sums:
    """Over the pairs of a change: their number, the wrong ones by weight, weights, squares."""

    pairs: int = 0
    wrong: float = 0.0
    weight: float = 0.0
    squares: float = 0.0

    def add(self, pairs: int, wrong: float, weight: float, squares: float) -> None:
        """Add those of some of the pairs."""
        self.pairs += pairs
        self.wrong += wrong
        self.weight += weight
        self.squares += squares

    def error(self) -> Error:
        """Weighted error, number of pairs, sum of weights, effective number of pairs."""
        if self.weight == 0.0:
            return math.nan, self.pairs, 0.0, 0.0
        error = min(1.0, self.wrong / self.weight)  # rounding may lead past 1
        return error, self.pairs, self.weight, self.weight**2 / self.squares


def changes_along(grid: Grid, axis: str, pooling: Pooling, seed_key: str) -> list[Change]:
    """Every change of the hyperparameter, over all values of the others or for each of them."""
    changes: dict[tuple[Hashable, Hashable, str], Change] = {}
    names = grid.axes(but=(axis, seed_key))
    for group in grid.groups_along(axis, ignoring=(seed_key,)):
        others = ""
        if pooling == "cell":
            others = ", ".join(f"{name}={grid.value(group[0], name)}" for name in names)
        runs = grid.by_value(axis, group)
        for first, second in itertools.combinations(runs, 2):
            key = (first, second, others)
            change = changes.setdefault(key, Change(*key, []))
            change.cells.append((runs[first], runs[second]))
    return list(changes.values())


def errors_of(
    changes: Sequence[Change], x: Array, y: Array, weight: PairWeight | None
) -> list[Error]:
    """How often x orders two runs against y, for each change; None weighs all pairs alike."""
    sums = [_Sums() for _ in changes]
    listed: list[tuple[int, Array, Array]] = []
    waiting = 0
    for i, change in enumerate(changes):
        for first, second in change.cells:
            pairs = len(first) * len(second)
            if pairs > SMALL:
                _add_large(sums[i], x, y, first, second, weight)
                continue
            listed.append((i, first, second))
            waiting += pairs
            if waiting > AT_ONCE:
                _add_listed(sums, x, y, listed, weight)
                listed, waiting = [], 0
    _add_listed(sums, x, y, listed, weight)
    return [each.error() for each in sums]


def _add_listed(
    sums: Sequence[_Sums],
    x: Array,
    y: Array,
    cells: Sequence[tuple[int, Array, Array]],
    weight: PairWeight | None,
) -> None:
    """All pairs of small cells in one list."""
    np = numpy()
    if not cells:
        return
    one = np.concatenate([np.repeat(first, len(second)) for _, first, second in cells])
    other = np.concatenate([np.tile(second, len(first)) for _, first, second in cells])
    counts = [len(first) * len(second) for _, first, second in cells]
    places = np.repeat([i for i, *_ in cells], counts)
    wrong, weights = _compared(x[one], x[other], y[one], y[other], weight)
    length = int(places[-1]) + 1
    columns = [
        np.bincount(places, values, length) for values in (weights * wrong, weights, weights**2)
    ]
    pairs = np.bincount(places, minlength=length)
    for i in np.unique(places):
        sums[i].add(int(pairs[i]), *(float(column[i]) for column in columns))


def _add_large(
    sums: _Sums, x: Array, y: Array, first: Array, second: Array, weight: PairWeight | None
) -> None:
    """All pairs of two large cells, without a list of them."""
    np = numpy()
    pairs = len(first) * len(second)
    if weight is None:
        both = np.concatenate([first, second])
        of_both, *of_each = (agreement(x[runs], y[runs]) for runs in (both, first, second))
        across = of_both - sum(of_each)
        sums.add(pairs, (pairs - across / 2) / 2, float(pairs), float(pairs))
        return
    for part in np.array_split(first, math.ceil(pairs / AT_ONCE)):
        wrong, weights = _compared(x[part][:, None], x[second], y[part][:, None], y[second], weight)
        total, squares = float(weights.sum()), float((weights**2).sum())
        sums.add(weights.size, float((weights * wrong).sum()), total, squares)


def _compared(
    x: Array, other_x: Array, y: Array, other_y: Array, weight: PairWeight | None
) -> tuple[Array, Array]:
    """Of each pair: 1 where x orders it against y, ½ where one of them is tied; and its weight."""
    wrong = (1.0 - signs(x, other_x) * signs(y, other_y)) / 2
    return wrong, numpy().ones_like(wrong) if weight is None else weight(y - other_y)
