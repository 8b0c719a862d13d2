"""Whether numbers of one training move together (paper 001, A.3), from looks along the way."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ...study.statistics import spearman
from ..experiment import Cell, Figure, Row, Series, Table
from ..judging.contrasts import line
from ..judging.findings import Finding, Result
from ..judging.numbers import Estimate, mean
from ..judging.rows import column
from .tasks_points import SIGNAL, STEP, TEST, TRAIN, at_points, steps_at

TRACE, FREQUENCY = "curvature.trace", "activity.frequency"
POINTS = 12
ALIKE = 0.7  # a mean rank correlation of at least that counts as nearly the same trend
MEASURES = (TRACE, FREQUENCY)
SHOWN = (TRAIN, TEST, TRACE, SIGNAL, FREQUENCY)
COLUMNS = tuple(f"{name}/{p}" for p in range(1, POINTS + 1) for name in (STEP, *SHOWN))


def together(rows: Sequence[Row], one: str, other: str) -> Estimate:
    """Mean over runs of the rank correlation of two numbers along each run."""
    correlations = [spearman(at_points(row, one), at_points(row, other)).value for row in rows]
    return mean(correlations)


def same_trend(part: str, correlation: Estimate) -> Finding:
    """Held where the mean is large and surely above 0, not held where it surely is not large."""
    if correlation.low > 0 and correlation.value >= ALIKE:
        result: Result = "held"
    else:
        result = "not held" if correlation.high < ALIKE else "undecided"
    return Finding(part, result, correlation)


def other_trend(part: str, correlation: Estimate) -> Finding:
    """The opposite: held where the same trend is not."""
    opposite: dict[Result, Result] = {"held": "not held", "not held": "held"}
    same = same_trend(part, correlation)
    return dataclasses.replace(same, result=opposite.get(same.result, same.result))


def trend_rows(first_cells: Sequence[Cell], rows: Sequence[Row]) -> list[list[Cell]]:
    """A row of the table for each look: means over runs with their intervals."""
    return [
        [*first_cells, step, len(rows), *(mean(column(rows, f"{name}/{point}")) for name in SHOWN)]
        for point, step in enumerate(steps_at(rows, POINTS), start=1)
    ]


def trend_lines(prefix: str, rows: Sequence[Row]) -> list[Series]:
    """Trace, signal and activation frequency, each in parts of its own mean along the way."""
    steps = steps_at(rows, POINTS)
    series = []
    for name in (TRACE, SIGNAL, FREQUENCY):
        means = [mean(column(rows, f"{name}/{point}")) for point in range(1, POINTS + 1)]
        unit = sum(each.value for each in means) / len(means)
        series.append(line(f"{prefix}{name}", steps, means, unit))
    return series


def trend_table(titles: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Table:
    """Under their headings."""
    return Table((*titles, "batches", "n", *SHOWN), rows)


def trend_figure(series: Sequence[Series]) -> Figure:
    """Against the batches seen."""
    return Figure("batches", "in parts of the mean along the way", series)
