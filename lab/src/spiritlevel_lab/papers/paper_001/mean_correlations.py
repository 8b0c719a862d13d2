"""Means of correlations, with intervals that do not go beyond -1 and 1."""

from __future__ import annotations

import dataclasses

from ...claims.numbers import IntervalEstimate

HOW = (  # for texts about numbers that went through `as_correlation`
    "Intervals of a mean correlation are Student's, cut off at -1 and 1."
)


def as_correlation(average: IntervalEstimate) -> IntervalEstimate:
    """The mean with its interval cut off at -1 and 1.

    Fisher's z would be infinite for a run with a correlation of 1. Cutting off changes no
    comparison with a level between -1 and 1.

    >>> print(as_correlation(IntervalEstimate(0.95, 0.8, 1.1, 3)))
    0.95 [0.8, 1]
    """
    low, high = (min(max(end, -1.0), 1.0) for end in (average.low, average.high))
    return dataclasses.replace(average, low=low, high=high)
