"""Means and shares over runs, with their intervals."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Hashable, Iterable, Sequence

from spiritlevel.math.student import t_quantile
from spiritlevel.records.content import IntervalEstimate as IntervalEstimate
from spiritlevel.records.content import plain as plain

from ..statistics.clusters import MIN_CLUSTERS

CONFIDENCE = 0.95
CUT_OFF = "Intervals of a mean correlation are Student's, cut off at -1 and 1."


def mean(values: Iterable[float | None]) -> IntervalEstimate:
    """The mean over runs with Student's interval; runs without the number are not counted.

    >>> print(mean([1.0, 2.0, 3.0, None]))
    2 [-0.484, 4.48]
    """
    finite = [v for v in values if v is not None and math.isfinite(v)]
    if not finite:
        return IntervalEstimate(math.nan, math.nan, math.nan, 0)
    middle = statistics.fmean(finite)
    if len(finite) == 1:
        return IntervalEstimate(middle, math.nan, math.nan, 1)
    quantile = t_quantile(0.5 + CONFIDENCE / 2, len(finite) - 1)
    half = quantile * statistics.stdev(finite) / math.sqrt(len(finite))
    return IntervalEstimate(middle, middle - half, middle + half, len(finite))


def widest_mean(values: Sequence[float], *groupings: Sequence[Hashable]) -> IntervalEstimate:
    """The mean with the widest interval: over the values, or over the means of their groups.

    Args:
        values: paired differences, say.
        groupings: what each value shares with others, such as its seed; fewer than four groups
            say too little and are left out.

    >>> print(widest_mean([1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0], list("aabbccdd")))
    2.5 [0.446, 4.55]
    """
    found = [mean(values)]
    for groups in groupings:
        members: dict[Hashable, list[float]] = {}
        for group, value in zip(groups, values, strict=True):
            members.setdefault(group, []).append(value)
        if len(members) >= MIN_CLUSTERS:
            found.append(mean(statistics.fmean(own) for own in members.values()))
    chosen = max(found, key=lambda each: each.high - each.low)
    return dataclasses.replace(chosen, value=found[0].value, n=found[0].n)


def share(flags: Iterable[bool]) -> IntervalEstimate:
    """How many of the runs, with Wilson's interval, which stays within 0 and 1.

    >>> print(share([True] * 100))
    1 [0.963, 1]
    """
    held = list(flags)
    n = len(held)
    if n == 0:
        return IntervalEstimate(math.nan, math.nan, math.nan, 0)
    p = sum(held) / n
    square = statistics.NormalDist().inv_cdf(0.5 + CONFIDENCE / 2) ** 2
    middle = (p + square / (2 * n)) / (1 + square / n)
    half = math.sqrt(square * (p * (1 - p) / n + square / (4 * n * n))) / (1 + square / n)
    return IntervalEstimate(p, max(0.0, middle - half), min(1.0, middle + half), n)


def logarithms(values: Iterable[float | None]) -> list[float | None]:
    """Of the numbers above 0; None for the others.

    >>> logarithms([1.0, 0.0, None])
    [0.0, None, None]
    """
    return [math.log(value) if value is not None and value > 0 else None for value in values]


def as_correlation(average: IntervalEstimate) -> IntervalEstimate:
    """The mean with its interval cut off at -1 and 1.

    Fisher's z would be infinite for a run with a correlation of 1. Cutting off changes no
    comparison with a level between -1 and 1.

    >>> print(as_correlation(IntervalEstimate(0.95, 0.8, 1.1, 3)))
    0.95 [0.8, 1]
    """
    low, high = (min(max(end, -1.0), 1.0) for end in (average.low, average.high))
    return dataclasses.replace(average, low=low, high=high)
