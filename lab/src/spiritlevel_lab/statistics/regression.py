"""Straight lines through measure and outcome, and heavy tails, where a few runs decide them.

The table is that of paper 000 (Table 3). Where tails are heavy, logarithms and ranks stand beside
Pearson's r.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

from spiritlevel.records.notebooks import aligned

from .correlations import Correlation, kendall, p_of_t, pearson, spearman
from .intervals import percent
from .points import (
    Array,
    Numbers,
    as_floats,
    finite_points,
    is_constant,
    numpy,
    scaled,
    why_undefined,
)


@dataclasses.dataclass(frozen=True)
class Regression:
    """target ≈ slope·measure + intercept by least squares, and how closely they go together."""

    slope: float
    intercept: float
    slope_stderr: float
    p_slope: float
    r_squared: float
    pearson: Correlation
    spearman: Correlation
    kendall: Correlation
    n: int
    excluded: int
    log: bool  # whether the measure's natural logarithm is regressed upon
    reason: str = ""

    def rows(self) -> list[tuple[str, str]]:
        """Metric and value in the order in which the paper prints them."""
        ends = f"[{self.pearson.low:.4f}, {self.pearson.high:.4f}]"
        return [
            ("Linear regression slope", f"{self.slope:.5g}"),
            ("Intercept", f"{self.intercept:.5g}"),
            ("p (slope)", f"{self.p_slope:.4g}"),
            ("Slope standard error", f"{self.slope_stderr:.4g}"),
            ("R²", f"{self.r_squared:.4f}"),
            ("Pearson r", f"{self.pearson.value:.4f}"),
            (f"{percent(self.pearson.confidence)} CI (Pearson r)", ends),
            ("p (Pearson)", f"{self.pearson.p:.4g}"),
            ("Spearman ρ", f"{self.spearman.value:.4f}"),
            ("p (Spearman)", f"{self.spearman.p:.4g}"),
            ("Kendall τ", f"{self.kendall.value:.4f}"),
            ("p (Kendall)", f"{self.kendall.p:.4g}"),
            ("n", str(self.n)),
            ("excluded", str(self.excluded)),
        ]

    def __str__(self) -> str:
        heading = "metric (of log measure)" if self.log else "metric"
        lines = [aligned([(heading, "value"), *self.rows()])]
        return "\n".join(lines + [f"Undefined: {self.reason}."] * bool(self.reason))


def regression(
    values: Numbers,
    target: Numbers,
    *,
    log: bool = False,
    confidence: float = 0.95,
) -> Regression:
    """Regress the target on the measure.

    Args:
        values: of the measure, one a run; None or a non-finite number leaves the run out.
        target: such as the generalization gap.
        log: regress on log(measure); runs where it is not positive are left out and counted.
        confidence: of the correlations' intervals.
    """
    np = numpy()
    x = as_floats(values, "values")
    if log:
        x = np.log(x, out=np.full_like(x, np.nan), where=x > 0)
    points = finite_points(values=x, target=target)
    x, y = points.columns
    reason = why_undefined(points, measure=x, target=y)
    line = (math.nan,) * 5 if reason else _line(x, y)

    def correlation(of: Callable[..., Correlation]) -> Correlation:
        return dataclasses.replace(of(x, y, confidence=confidence), excluded=points.excluded)

    return Regression(
        *line,
        pearson=correlation(pearson),
        spearman=correlation(spearman),
        kendall=correlation(kendall),
        n=points.n,
        excluded=points.excluded,
        log=log,
        reason=reason,
    )


def _line(x: Array, y: Array) -> tuple[float, float, float, float, float]:
    """Slope, intercept, standard error and p of the slope, R²."""
    unit_x, unit_y = float(abs(x).max()), float(abs(y).max())  # so that no square can overflow
    dx, dy = x / unit_x - (x / unit_x).mean(), y / unit_y - (y / unit_y).mean()
    xx, yy, xy = float(dx @ dx), float(dy @ dy), float(dx @ dy)
    slope = xy / xx
    left = dy - slope * dx
    degrees = len(x) - 2
    stderr = math.sqrt(float(left @ left) / degrees / xx)
    r = xy / math.sqrt(xx * yy)
    scale = unit_y / unit_x
    intercept = unit_y * float((y / unit_y).mean() - slope * (x / unit_x).mean())
    return slope * scale, intercept, stderr * scale, p_of_t(r, degrees), r**2


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
