"""Heavy tails: Pearson's r may rest on a few runs, so logarithms and ranks are shown beside it."""

from __future__ import annotations

import dataclasses
import math

from .correlations import Correlation, pearson, spearman
from .points import Array, Numbers, finite_points, is_constant, numpy, scaled

HEAVY = 3.0  # excess kurtosis: that of Laplace's distribution; a normal sample has 0
FAR_APART = 0.2  # Pearson and Spearman, of a normal sample at most 0.02


@dataclasses.dataclass(frozen=True)
class Tails:
    """How far the extremes of measure and target reach, and what Pearson's r owes to them."""

    heavy: bool
    kurtosis: tuple[float, float]  # excess, of measure and target; nan where they are constant
    pearson: Correlation
    of_logs: Correlation | None  # None: neither measure nor target is positive in all runs
    spearman: Correlation

    @property
    def coefficients(self) -> str:
        """Pearson's r beside those of logarithms and ranks, without intervals: these judge not."""
        logs = "" if self.of_logs is None else f", of logarithms {self.of_logs.value:+.2f}"
        return f"r {self.pearson.value:+.2f}{logs}, of ranks {self.spearman.value:+.2f}"


def tails(values: Numbers, target: Numbers, *, confidence: float = 0.95) -> Tails:
    """Excess kurtosis of both columns, and Pearson's r of values, logarithms and ranks.

    Args:
        values: of the measure, one a run; None or a non-finite number leaves the run out.
        target: what it should predict.
        confidence: of the intervals.

    >>> print(tails([1, 2, 3, 4, 5, 6, 7, 900], [2, 1, 4, 3, 6, 5, 8, 1000]).heavy)
    True
    """
    np = numpy()
    values, target = list(values), list(target)
    x, y = finite_points(values=values, target=target).columns
    linear = pearson(values, target, confidence=confidence)
    ranks = spearman(values, target, confidence=confidence)
    logs = [np.log(column) if len(column) and column.min() > 0 else None for column in (x, y)]
    of_logs = None
    if any(column is not None for column in logs):
        one, other = (
            column if log is None else log for column, log in zip((x, y), logs, strict=True)
        )
        of_logs = pearson(one, other, confidence=confidence)
    kurtosis = (excess_kurtosis(x), excess_kurtosis(y))
    is_far = abs(linear.value - ranks.value) >= FAR_APART
    return Tails(is_far or max(kurtosis) > HEAVY, kurtosis, linear, of_logs, ranks)


def excess_kurtosis(column: Array) -> float:
    """The mean fourth power of standardized numbers less 3; nan where they are the same.

    >>> round(excess_kurtosis(numpy().array([-1.0, 1.0, -1.0, 1.0])), 9)
    -2.0
    """
    if not len(column) or is_constant(column):
        return math.nan
    away = scaled(column)
    away = away - away.mean()
    return float((away**4).mean() / (away**2).mean() ** 2 - 3.0)
