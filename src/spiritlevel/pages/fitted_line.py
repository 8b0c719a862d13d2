"""The line through the marks of a figure, for browsers and for files."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

ENOUGH = 4  # marks for a line through them


def fitted_line(
    x: Sequence[float], y: Sequence[float], *, log_x: bool = False
) -> tuple[list[float], list[float]] | None:
    """The ends of the line of least squares, as x and y; None for too few marks to see a trend.

    On a logarithmic axis it is a line through the logarithms, which is drawn straight there.

    >>> fitted_line([1, 2, 3, 4], [2, 4, 6, 8])
    ([1, 4], [2.0, 8.0])
    """
    if len(x) < ENOUGH or min(x) == max(x):
        return None
    across = [math.log(value) for value in x] if log_x else list(x)
    slope, intercept = statistics.linear_regression(across, y)
    ends = min(x), max(x)
    return list(ends), [intercept + slope * (math.log(e) if log_x else e) for e in ends]
