"""Paper 001, Figs. 7 and 8: whether numbers move together during one training run."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ...pages.content import Cell, Figure, Series, Table
from ...study.statistics import spearman
from ..judging.contrasts import line
from ..judging.experiment import Experiment, Outcome, Row
from ..judging.findings import Agreement, Finding, Result, verdict
from ..judging.numbers import IntervalEstimate, as_correlation, mean
from ..judging.rows import column, grouped
from .tasks_points import SIGNAL, TEST, TRAIN, at_points, steps_at

TRACE, FREQUENCY = "curvature.trace", "activity.frequency"
POINTS = 12
RATE = "lr"
SHOWN = (TRAIN, TEST, TRACE, SIGNAL, FREQUENCY)
DATA = (  # the runs do not say which preset they were made with
    "Its inputs are images of digits, one token per pixel, not language: only the preset paper "
    "uses BoolQ, the paper's data."
)


def perceptron(experiment: Experiment, rows: Sequence[Row]) -> Outcome:
    """Rank correlations along each run: of the trace with the signal, and with the activity."""
    alike = experiment.thresholds["alike"]
    table: list[list[Cell]] = []
    lines: list[Series] = []
    findings, said = [], []
    for rate, group in grouped(rows, RATE).items():
        table += trend_rows([rate], group)
        lines += trend_lines(f"rate {rate:g}: ", group)
        signal, activity = (
            as_correlation(together(group, TRACE, name)) for name in (SIGNAL, FREQUENCY)
        )
        findings += [
            same_trend(
                f"learning rate {rate:g}: trace and {title} show the same trend", each, alike
            )
            for title, each in (("first gradient", signal), ("activation frequency", activity))
        ]
        said.append(
            f"at learning rate {rate:g} it is {signal} with the first gradient and {activity} with "
            f"the activation frequency (n = {signal.n})"
        )
    return Outcome(
        table=trend_table(["learning rate"], table),
        figure=trend_figure(lines),
        findings=findings,
        agrees=verdict(findings),
        conclusion=(
            f"The mean rank correlation of the trace along a run: {'; '.join(said)}; at least "
            f"{alike:g} counts as the same trend."
        ),
    )


def transformer(experiment: Experiment, rows: Sequence[Row]) -> Outcome:
    """Rank correlations along each run, as for the perceptron."""
    alike = experiment.thresholds["alike"]
    signal, activity = (as_correlation(together(rows, TRACE, name)) for name in (SIGNAL, FREQUENCY))
    apart = other_trend(
        "trace and activation frequency do not show the same trend", activity, alike
    )
    return Outcome(
        table=trend_table([], trend_rows([], rows)),
        figure=trend_figure(trend_lines("", rows)),
        findings=[apart],
        agrees=_agreement(apart, activity.n),
        conclusion=(
            "Along a run of the transformer the rank correlation of the trace is on average "
            f"{activity} with the activation frequency and {signal} with the first gradient, "
            f"at n = {activity.n}; at least {alike:g} counts as the same trend. "
            f"{_kind(activity, alike)} {DATA}"
        ),
    )


def _kind(activity: IntervalEstimate, alike: float) -> str:
    """Whether the trend is opposite or absent, if it is not the same."""
    if activity.high < 0:
        return "The trend is opposite, not absent."
    if activity.value <= -alike:
        return "The mean suggests an opposite trend; with so few runs it may also be none."
    if activity.low <= 0 <= activity.high:
        return "There is no clear trend, neither the same nor an opposite one."
    return ""


def _agreement(apart: Finding, n: int) -> Agreement:
    between = apart.result == "undecided" and n > 1  # one run has no interval
    return "partly" if between else verdict([apart])


def together(rows: Sequence[Row], one: str, other: str) -> IntervalEstimate:
    """Mean over runs of the rank correlation of two numbers along each run."""
    correlations = [spearman(at_points(row, one), at_points(row, other)).value for row in rows]
    return mean(correlations)


def same_trend(part: str, correlation: IntervalEstimate, alike: float) -> Finding:
    """Held if the mean is at least `alike` and surely above 0, not held if surely below it."""
    if correlation.low > 0 and correlation.value >= alike:
        result: Result = "held"
    else:
        result = "not held" if correlation.high < alike else "undecided"
    return Finding(part, result, correlation)


def other_trend(part: str, correlation: IntervalEstimate, alike: float) -> Finding:
    """The opposite of `same_trend`: held where that is not held."""
    opposite: dict[Result, Result] = {"held": "not held", "not held": "held"}
    same = same_trend(part, correlation, alike)
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
