"""Groups of runs compared seed by seed: the same seed is the same start."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from spiritlevel.records.content import Cell, Figure, Series, Table

from ..statistics import Correlation
from .experiment import Row, titled
from .numbers import IntervalEstimate, mean
from .rows import column

Groups = Mapping[str, Sequence[Row]]
Pair = tuple[float | None, float | None]  # before and after; None where a run lacks the number


def difference(changed: Sequence[Row], plain: Sequence[Row], name: str) -> IntervalEstimate:
    """Mean of changed − plain over seeds that both have; runs without the number do not count."""
    return mean(_differences(changed, plain, name))


def lower_in(changed: Sequence[Row], plain: Sequence[Row], name: str) -> str:
    """In how many of the pairs the changed run has the smaller number."""
    differences = _differences(changed, plain, name)
    return f"lower in {sum(each < 0 for each in differences)} of {len(differences)} pairs"


def by_seed(rows: Sequence[Row], name: str) -> dict[int, float]:
    """The number of each seed that has it; of several runs of one seed, the mean.

    A study that somebody changed may have several, and they are not independent.

    >>> by_seed([{"seed": 0, "gap": 1.0}, {"seed": 0, "gap": 3.0}, {"seed": 1, "gap": None}], "gap")
    {0: 2.0}
    """
    values: dict[int, list[float]] = {}
    for row in rows:
        if row.get(name) is not None:
            values.setdefault(row["seed"], []).append(row[name])
    return {seed: statistics.fmean(each) for seed, each in values.items()}


def _differences(changed: Sequence[Row], plain: Sequence[Row], name: str) -> list[float]:
    before, after = by_seed(plain, name), by_seed(changed, name)
    return [after[seed] - before[seed] for seed in after if seed in before]


def falls(change: IntervalEstimate | Correlation) -> bool:
    """Whether the whole interval lies below 0."""
    return change.high < 0


def rises(change: IntervalEstimate | Correlation) -> bool:
    """Whether the whole interval lies above 0."""
    return change.low > 0


def group_points(
    groups: Groups, x: str, y: str, x_label: str, y_label: str, *, fitted: bool = False
) -> Figure:
    """One point per run; runs without one of the numbers are left out. `fitted`: a line each."""
    series = []
    for name_of_group, group in groups.items():
        drawn = [row for row in group if row.get(x) is not None and row.get(y) is not None]
        series.append(Series(name_of_group, column(drawn, x), column(drawn, y)))
    positive = all(value > 0 for each in series for value in each.x)
    return Figure(x_label, y_label, series, log_x=positive, points=True, fitted=fitted)


def line(
    name: str, x: Sequence[float], estimates: Sequence[IntervalEstimate], unit: float = 1.0
) -> Series:
    """Means with their intervals along x, in parts of `unit`."""
    return Series(
        name,
        list(x),
        [each.value / unit for each in estimates],
        [each.low / unit for each in estimates],
        [each.high / unit for each in estimates],
    )


def factor(pairs: Iterable[Pair]) -> IntervalEstimate:
    """The geometric mean of after / before; a pair with a number that is not above 0 is left out.

    >>> print(factor([(1.0, 2.0), (3.0, 6.0), (0.0, 1.0)]))
    2 [2, 2]
    """
    return exponential(mean(_log(after) - _log(before) for before, after in pairs))


def exponential(logs: IntervalEstimate) -> IntervalEstimate:
    """A mean of logarithms as a factor."""
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
