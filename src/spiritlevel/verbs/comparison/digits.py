"""Numbers side by side, with as many digits as it takes to tell them apart."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

FEWEST, MOST = 3, 7
ROUND_OFF = 1e-6  # relative: a smaller difference is none


def apart(values: Sequence[float], *, fewest: int = FEWEST) -> list[str]:
    """The values as text; two that differ look different, if seven digits can show it.

    >>> apart([13.04, 13.01])
    ['13.04', '13.01']
    >>> apart([0.2, 0.4]), apart([1.0, 1.0 + 1e-8])
    (['0.2', '0.4'], ['1', '1'])
    """
    ordered = sorted(values)
    size = max(map(abs, ordered), default=0.0)
    distinct = 1 + sum(b - a > ROUND_OFF * size for a, b in itertools.pairwise(ordered))
    for digits in range(fewest, MOST + 1):
        shown = [f"{value:.{digits}g}" for value in values]
        if len(set(shown)) >= distinct:
            break
    return shown
