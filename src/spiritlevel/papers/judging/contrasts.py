"""Groups of runs held against each other, seed by seed: the same seed is the same start."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from ...pages.content import Cell, Figure, Series, Table
from ...study.statistics import Correlation
from .experiment import Row
from .numbers import IntervalEstimate, mean
from .rows import column

Groups = Mapping[str, Sequence[Row]]


def groups_of(rows: Sequence[Row], name: str, order: Sequence[object]) -> dict[str, list[Row]]:
    """Rows by the value of one column, in this order; values that no run has are left out.

    >>> groups_of([{"lr": 2}, {"lr": 1}], "lr", [1, 2, 3])
    {'1': [{'lr': 1}], '2': [{'lr': 2}]}
    """
    groups = {str(value): [row for row in rows if row[name] == value] for value in order}
    return {value: group for value, group in groups.items() if group}


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


def group_table(title: str, groups: Groups, shown: Sequence[str]) -> Table:
    """One row per group: its n, and means with intervals."""
    rows: list[list[Cell]] = [
        [name_of_group, len(group), *(mean(column(group, name)) for name in shown)]
        for name_of_group, group in groups.items()
    ]
    return Table((title, "n", *shown), rows)


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
