"""Means with their intervals, and numbers as they are written on a page."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable

from ...math.student import t_quantile

CONFIDENCE = 0.95


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A value, the ends of its 95 % interval (nan where n is too small for one), and n."""

    value: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        if math.isnan(self.low):
            return f"{plain(self.value)} (n = {self.n}, no interval)"
        value, low, high = (plain(each, 3) for each in (self.value, self.low, self.high))
        return f"{value} [{low}, {high}]"


def mean(values: Iterable[float | None]) -> Estimate:
    """The mean over runs with Student's interval; runs without the number are not counted.

    >>> print(mean([1.0, 2.0, 3.0, None]))
    2 [-0.484, 4.48]
    """
    found = [v for v in values if v is not None and math.isfinite(v)]
    if not found:
        return Estimate(math.nan, math.nan, math.nan, 0)
    middle = statistics.fmean(found)
    if len(found) == 1:
        return Estimate(middle, math.nan, math.nan, 1)
    quantile = t_quantile(0.5 + CONFIDENCE / 2, len(found) - 1)
    half = quantile * statistics.stdev(found) / math.sqrt(len(found))
    return Estimate(middle, middle - half, middle + half, len(found))


def share(flags: Iterable[bool]) -> Estimate:
    """How many of the runs, with Wilson's interval, which stays within 0 and 1.

    >>> print(share([True] * 100))
    1 [0.963, 1]
    """
    found = list(flags)
    n = len(found)
    if n == 0:
        return Estimate(math.nan, math.nan, math.nan, 0)
    p = sum(found) / n
    square = statistics.NormalDist().inv_cdf(0.5 + CONFIDENCE / 2) ** 2
    middle = (p + square / (2 * n)) / (1 + square / n)
    half = math.sqrt(square * (p * (1 - p) / n + square / (4 * n * n))) / (1 + square / n)
    return Estimate(p, max(0.0, middle - half), min(1.0, middle + half), n)


def plain(value: float, digits: int = 4) -> str:
    """A few digits, as short as they come; powers of ten below 0.0001 and from a million on.

    >>> plain(0.123456), plain(5.11e8), plain(2282.1, 3), plain(float("nan"))
    ('0.1235', '5.11e+08', '2280', '–')
    """
    if math.isnan(value):
        return "–"
    short = f"{value + 0.0:.{digits}g}"  # + 0.0: no minus before a zero
    return f"{float(short):.0f}" if "e" in short and 1 <= abs(value) < 999_500 else short
