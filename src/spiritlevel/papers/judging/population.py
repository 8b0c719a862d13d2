"""A population of networks: what each measure says about the gap, and what is left of it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...measures import names
from ...measures.confounders import IN_PAPERS
from ...study.statistics import Correlation, partial_correlation, pearson, spearman
from ..experiment import Cell, Figure, Row, Series, Table, titled
from .findings import estimate
from .numbers import IntervalEstimate
from .rows import column

GAP = "gap"
FEW = 10  # networks, below which a correlation says nothing
CONFOUNDERS = IN_PAPERS


def correlations(
    rows: Sequence[Row], measures: Sequence[str]
) -> tuple[Table, dict[str, Correlation]]:
    """One row per measure: Pearson, Spearman, and Spearman with the confounders held fixed."""
    gap = column(rows, GAP)
    confounders = {name: column(rows, name) for name in CONFOUNDERS}
    table: list[list[Cell]] = []
    ranks: dict[str, Correlation] = {}
    for name in measures:
        values = column(rows, name)
        ranks[name] = spearman(values, gap)
        given = {key: column_ for key, column_ in confounders.items() if key != name}
        cells = (
            pearson(values, gap),
            ranks[name],
            partial_correlation(values, gap, given, kind="spearman"),
        )
        table.append([name, ranks[name].n, *(estimate(correlation) for correlation in cells)])
    titles = ("measure", "n", "Pearson", "Spearman", "Spearman, confounders held fixed")
    return Table(titles, table), ranks


def whole_catalogue(rows: Sequence[Row]) -> Table:
    """The same for all measures that the runs have, the largest rank correlation first.

    Those that suit few of the networks come last: their correlation may be anything.
    """
    there = [name for name in names() if any(row.get(name) is not None for row in rows)]
    table, ranks = correlations(rows, there)

    def place(cells: Sequence[Cell]) -> tuple[bool, float]:
        correlation = ranks[str(cells[0])]
        return correlation.n >= FEW, _value(correlation)

    return titled(
        "Everything that was measured",
        "The correlation of every measure with the gap, the largest first. Of measures that tell "
        "nothing, about one in 20 has an interval that misses 0. What each of them is: spiritlevel "
        "show NAME.",
        Table(table.columns, sorted(table.rows, key=place, reverse=True)),
    )


def finite_rows(rows: Sequence[Row], measure: str) -> list[Row]:
    """Those with a number for the measure and for the gap."""
    return [
        row
        for row in rows
        if all(row.get(k) is not None and math.isfinite(row[k]) for k in (measure, GAP))
    ]


def squared(correlation: Correlation) -> IntervalEstimate:
    """R² of a line through two columns: every value that a correlation in its interval can have."""
    low, high = sorted((correlation.low**2, correlation.high**2))
    return IntervalEstimate(
        correlation.value**2,
        0.0 if correlation.low <= 0 <= correlation.high else low,
        high,
        correlation.n,
    )


def scatter(rows: Sequence[Row], measure: str) -> Figure:
    """One point per network: the measure across, the gap upwards."""
    drawn = finite_rows(rows, measure)
    x, y = column(drawn, measure), column(drawn, GAP)
    log = bool(x) and min(x) > 0
    return Figure(measure, "generalization gap", [Series(measure, x, y)], log_x=log, points=True)


def strongest(ranks: dict[str, Correlation]) -> str:
    """The measure with the largest rank correlation; one that is undefined never is."""
    return max(ranks, key=lambda name: _value(ranks[name]))


def why(rows: Sequence[Row], measure: str, name: str = "relative flatness") -> str:
    """What stands between a measure and the gap: confounders that go with both of them."""
    values, gap = column(rows, measure), column(rows, GAP)
    confounders = {key: column(rows, key) for key in CONFOUNDERS if key != measure}
    said = [
        f"the {CONFOUNDERS[key]} has a rank correlation of {spearman(each, values)} with {name} "
        f"and of {spearman(each, gap)} with the gap"
        for key, each in confounders.items()
    ]
    left = partial_correlation(values, gap, confounders, kind="spearman")
    return (
        f"Over {left.n} networks {' and '.join(said)}. With them held fixed, {name} and the gap "
        f"have a rank correlation of {left}."
    )


def _value(correlation: Correlation) -> float:
    return -2.0 if math.isnan(correlation.value) else correlation.value
