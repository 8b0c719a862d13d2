"""Means of correlations: their intervals end where correlations do."""

from __future__ import annotations

import dataclasses

from ..judging.numbers import Estimate

HOW = (  # for texts about numbers that went through `as_correlation`
    "Intervals of a mean correlation are Student's, cut off at -1 and 1."
)


def as_correlation(average: Estimate) -> Estimate:
    """The same mean; ends of its interval beyond -1 and 1 are set to these.

    Cut off rather than taken from Fisher's z, which a run with a correlation of 1 makes infinite;
    and no comparison with a level between -1 and 1 comes out differently.

    >>> print(as_correlation(Estimate(0.95, 0.8, 1.1, 3)))
    0.95 [0.8, 1]
    """
    low, high = (min(max(end, -1.0), 1.0) for end in (average.low, average.high))
    return dataclasses.replace(average, low=low, high=high)
