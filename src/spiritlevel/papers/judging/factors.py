"""Factors by which positive numbers changed: geometric means with their intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from ...pages.content import Cell, Table
from .contrasts import Groups, by_seed, difference
from .experiment import Row, titled
from .numbers import IntervalEstimate, mean

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
    before, after = by_seed(plain, name), by_seed(changed, name)
    return factor((before.get(seed), value) for seed, value in after.items())


def _log(value: float | None) -> float:
    """The logarithm, or nan where there is none, so that the mean leaves the pair out."""
    return math.log(value) if value is not None and 0 < value < math.inf else math.nan


def ratios(groups: Groups, plain: str, names: Sequence[str]) -> Table:
    """Each group over the plain one, paired by seed, beside the difference that is judged."""
    rows: list[list[Cell]] = []
    for group in groups:
        if group == plain:
            continue
        for name in names:
            ratio = factor_by_seed(groups.get(plain, ()), groups[group], name)
            change = difference(groups[group], groups.get(plain, ()), name)
            rows.append([group, name, ratio.n, ratio, change])
    return titled(
        "As ratios",
        "Traces and eigenvalues have long tails, and one large value can decide the mean of "
        f"differences. Here each network over that of the same seed in the group {plain}, as a "
        "geometric mean: the mean of the logarithms of the ratios. Shown, not judged: the rules "
        "were fixed for differences.",
        Table(("group", "measure", "pairs", f"over {plain}", f"less {plain}"), rows),
    )
