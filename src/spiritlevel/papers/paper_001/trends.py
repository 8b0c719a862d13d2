"""Whether numbers move together during one training run (paper 001, A.3)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ...pages.content import Cell, Figure, Series, Table
from ...study.statistics import spearman
from ..judging.contrasts import line
from ..judging.experiment import Row
from ..judging.findings import Finding, Result
from ..judging.numbers import IntervalEstimate, mean
from ..judging.rows import column
from .tasks_points import SIGNAL, TEST, TRAIN, at_points, steps_at

TRACE, FREQUENCY = "curvature.trace", "activity.frequency"
POINTS = 12
ALIKE = 0.7  # from this mean rank correlation on, trends count as nearly the same
MEASURES = (TRACE, FREQUENCY)
SHOWN = (TRAIN, TEST, TRACE, SIGNAL, FREQUENCY)


def together(rows: Sequence[Row], one: str, other: str) -> IntervalEstimate:
    """Mean over runs of the rank correlation of two numbers along each run."""
    correlations = [spearman(at_points(row, one), at_points(row, other)).value for row in rows]
    return mean(correlations)


def same_trend(part: str, correlation: IntervalEstimate) -> Finding:
    """Held if the mean is at least ALIKE and surely above 0, not held if surely below ALIKE."""
    if correlation.low > 0 and correlation.value >= ALIKE:
        result: Result = "held"
    else:
        result = "not held" if correlation.high < ALIKE else "undecided"
    return Finding(part, result, correlation)


def other_trend(part: str, correlation: IntervalEstimate) -> Finding:
    """The opposite of `same_trend`: held where that is not held."""
    opposite: dict[Result, Result] = {"held": "not held", "not held": "held"}
    same = same_trend(part, correlation)
    return dataclasses.replace(same, result=opposite.get(same.result, same.result))


def trend_rows(first_cells: Sequence[Cell], rows: Sequence[Row]) -> list[list[Cell]]:
    """One row for each point in training: means over runs with their intervals."""
    return [
        [*first_cells, step, len(rows), *(mean(column(rows, f"{name}/{point}")) for name in SHOWN)]
        for point, step in enumerate(steps_at(rows, POINTS), start=1)
    ]


def trend_lines(prefix: str, rows: Sequence[Row]) -> list[Series]:
    """Trace, signal and activation frequency, each divided by its mean over the training."""
    steps = steps_at(rows, POINTS)
    series = []
    for name in (TRACE, SIGNAL, FREQUENCY):
        means = [mean(column(rows, f"{name}/{point}")) for point in range(1, POINTS + 1)]
        unit = sum(each.value for each in means) / len(means)
        series.append(line(f"{prefix}{name}", steps, means, unit))
    return series


def trend_table(titles: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Table:
    """The rows under their headings."""
    return Table((*titles, "batches", "n", *SHOWN), rows)


def trend_figure(series: Sequence[Series]) -> Figure:
    """The series over the number of batches seen."""
    return Figure("batches", "divided by the mean over the training", series)
