"""Factors by which positive numbers changed: geometric means with their intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from ..experiment import Row
from ..judging.numbers import IntervalEstimate, mean

Pair = tuple[float | None, float | None]  # before and after; None where a run lacks the number


def factor(pairs: Iterable[Pair]) -> IntervalEstimate:
    """The geometric mean of after / before; a pair with a number that is not above 0 is left out.

    >>> print(factor([(1.0, 2.0), (3.0, 6.0), (0.0, 1.0)]))
    2 [2, 2]
    """
    logs = mean(_log(after) - _log(before) for before, after in pairs)
    return IntervalEstimate(math.exp(logs.value), math.exp(logs.low), math.exp(logs.high), logs.n)


def factor_by_seed(plain: Sequence[Row], changed: Sequence[Row], name: str) -> IntervalEstimate:
    """The factor between two groups in one column, over the seeds that both have."""
    before = {row["seed"]: row.get(name) for row in plain}
    return factor((before.get(row["seed"]), row.get(name)) for row in changed)


def _log(value: float | None) -> float:
    """The logarithm, or nan where there is none, so that the mean leaves the pair out."""
    return math.log(value) if value is not None and 0 < value < math.inf else math.nan
