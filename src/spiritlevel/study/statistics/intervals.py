"""Confidence intervals of correlations: by formula, and BCa by resampling.

BCa is not taken from `scipy.stats.bootstrap`: it returns nan as soon as one resample is undefined,
where this leaves such resamples out and reports their number.

Kendall's has all τ from which a normal sample would give one as far away as the one seen. Fisher's
z with the variance of Fieller, Hartley & Pearson (1957) is made for τ up to 0.6 and 10 or more
points: for 8 to 20 points with a τ of 0.7 to 0.9, its 95 % intervals hold the truth as little as
83 % of the time, and for 5 points they are a third wider than they need be. The variance of τ
itself is known for a normal sample of any size, so the test can be turned around, as Wilson does
for a share. Then 95 % intervals of 4 to 40 points, with τ from 0 to 0.97, hold the truth 95 to
100 % of the time.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics
from collections.abc import Callable

from ...need import need, number
from .points import Array, check_confidence, numpy
from .resampling import AT_ONCE, left_out

MIN_RESAMPLES = 100
FORMULAS = {
    "pearson": "Fisher z",
    "spearman": "Fisher z, Bonett–Wright variance",
    "kendall": "score, variance of a normal sample",
}
# What swapping two neighbours takes from a perfect order of n points.
SWAP: dict[str, Callable[[int], float]] = {
    "spearman": lambda n: 12 / (n * (n * n - 1)),
    "kendall": lambda n: 4 / (n * (n - 1)),
}


@dataclasses.dataclass(frozen=True)
class Interval:
    """Two ends; both nan if there is no interval, and then `reason` says why."""

    low: float
    high: float
    reason: str = ""


NO_INTERVAL = Interval(math.nan, math.nan)


def by_formula(
    kind: str, value: float, n: int, *, confidence: float = 0.95, given: int = 0
) -> Interval:
    """Fisher's z for Pearson and Spearman, the score interval for Kendall.

    `given` confounders held fixed take one degree of freedom each; 4 must be left.

    >>> interval = by_formula("pearson", 0.58028, 84)  # paper 000, Table 3
    >>> round(interval.low, 4), round(interval.high, 4)
    (0.4179, 0.7067)
    """
    check_confidence(confidence)
    count = n - given
    normal = statistics.NormalDist().inv_cdf(0.5 + confidence / 2)
    if kind == "kendall":
        correction = SWAP[kind](count) / 2
        return Interval(*score(value, count, normal=normal, correction=correction))
    return _fisher(kind, value, count, normal)


def _fisher(kind: str, value: float, n: int, normal: float) -> Interval:
    """tanh(atanh(value) ± q·√variance), with the variance that belongs to the kind.

    Pearson: 1/(n − 3), right for a bivariate normal sample and too narrow for heavy tails.
    Spearman: (1 + ρ²/2)/(n − 3) (Bonett & Wright 2000).

    Ranks in perfect order count as half the swap of two neighbours away from it. Otherwise the
    interval would have no width: for 4 to 6 points with a correlation of 0.9, Spearman's would hold
    the truth only 58 to 85 % of the time instead of 98 % or more.
    """
    if kind == "pearson" and abs(value) >= 1.0:
        return Interval(value, value, "the formula has no width for a perfect correlation")
    most = 1.0 - SWAP[kind](n) / 2 if kind in SWAP else 1.0
    inside = max(-most, min(most, value))
    numerator = 1.0 if kind == "pearson" else 1.0 + inside**2 / 2
    half, z = normal * math.sqrt(numerator / (n - 3)), math.atanh(inside)
    low, high = math.tanh(z - half), math.tanh(z + half)
    return Interval(-1.0 if value < inside else low, 1.0 if value > inside else high)


@functools.lru_cache(maxsize=1)  # all measures of a study are resampled alike
def resample_counts(n: int, resamples: int, seed: int) -> Array:
    """How often each of the n points is drawn: one row a resample. Not to be changed."""
    np = numpy()
    wanted = f"at least {MIN_RESAMPLES}: the interval's ends are percentiles of the resamples"
    need("resamples", resamples, number(least=MIN_RESAMPLES), wanted, "Usual: 2000.")
    generator = np.random.default_rng(seed)
    counts = np.empty((resamples, n), dtype=np.min_scalar_type(n))  # thousands of runs need room
    rows = max(1, AT_ONCE // n)
    for start in range(0, resamples, rows):
        part = counts[start : start + rows]
        places = generator.integers(0, n, part.shape) + n * np.arange(len(part))[:, None]
        part[:] = np.bincount(places.ravel(), minlength=part.size).reshape(part.shape)
    counts.flags.writeable = False
    return counts


def bca(
    statistic: Callable[[Array], Array],
    n: int,
    *,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
    left_one_out: Callable[[], Array] | None = None,
) -> Interval:
    """Bias-corrected and accelerated bootstrap interval (Efron 1987).

    `statistic` maps counts (one row a resample, how often each point is in it) to one number a
    row. Rows in which it is not defined (all points drawn have one value) are left out and counted.
    `left_one_out` gives the statistic without each of the points in turn, where there is a faster
    way than n rows of n counts.
    """
    np = numpy()
    check_confidence(confidence)
    drawn = statistic(resample_counts(n, resamples, seed))
    usable = drawn[np.isfinite(drawn)]
    lost = resamples - len(usable)
    if lost > resamples // 2:
        return Interval(math.nan, math.nan, f"{lost} of {resamples} resamples are undefined")
    reason = f"{lost} of {resamples} resamples were undefined and left out" if lost else ""
    value = float(statistic(np.ones((1, n)))[0])
    # Ties count half. A perfect correlation differs between resamples by rounding alone.
    below = usable < value - 1e-12
    level = float(np.mean(below + 0.5 * (abs(usable - value) <= 1e-12)))
    if not 0.0 < level < 1.0:
        return Interval(math.nan, math.nan, "all resamples lie on one side of the value")
    normal = statistics.NormalDist()
    bias = normal.inv_cdf(level)
    if left_one_out is None:
        acceleration = _acceleration(statistic(left_out(n, np.arange(n))))
    else:
        acceleration = _acceleration(left_one_out())
    ends = []
    for probability in (0.5 - confidence / 2, 0.5 + confidence / 2):
        shifted = bias + normal.inv_cdf(probability)
        ends.append(normal.cdf(bias + shifted / (1.0 - acceleration * shifted)))
    low, high = np.quantile(usable, ends)
    return Interval(float(low), float(high), reason)


def _acceleration(left_one_out: Array) -> float:
    """Skewness of the jackknife values over six; 0 where they do not differ."""
    np = numpy()
    values = left_one_out[np.isfinite(left_one_out)]
    if len(values) == 0:
        return 0.0
    away = values.mean() - values
    squares = float((away**2).sum())
    return 0.0 if squares <= 1e-24 else float((away**3).sum()) / (6.0 * squares**1.5)


def percent(confidence: float) -> str:
    """0.95 as 95%, and 0.999 as 99.9%: rounded to whole percents it would promise too much."""
    return f"{100 * confidence:g}%"


STEPS = 60  # halvings of at most 2: to the last bit


def score(value: float, n: int, *, normal: float, correction: float) -> tuple[float, float]:
    """Both ends: the smallest and the largest τ within `normal` standard errors of the value seen.

    `correction` is the continuity correction, half of what τ changes by at least.
    """
    return (
        _smallest(value - correction, n, normal),
        -_smallest(-value - correction, n, normal),
    )


def _smallest(value: float, n: int, normal: float) -> float:
    low, high = -1.0, max(-1.0, value)
    for _ in range(STEPS):
        middle = (low + high) / 2
        if value - middle > normal * math.sqrt(variance(middle, n)):
            low = middle
        else:
            high = middle
    return high


def variance(tau: float, n: int) -> float:
    """The variance of Kendall's τ over samples of n normal pairs with this τ (Esscher 1924).

    >>> round(variance(0.0, 10), 6), round(2 * (2 * 10 + 5) / (9 * 10 * 9), 6)
    (0.061728, 0.061728)
    """
    half = 2 / math.pi * math.asin(math.sin(math.pi * tau / 2) / 2)
    spread = 1 - tau**2 + 2 * (n - 2) * (1 / 9 - half**2)
    return 2 / (n * (n - 1)) * max(0.0, spread)  # at ±1 rounding may leave less than nothing
