"""Paper 001, Fig. 8: a text transformer, where trace and activity do not move together."""

from __future__ import annotations

from collections.abc import Sequence

from ..judging.experiment import Experiment, Outcome, Row
from ..judging.findings import Agreement, Finding, verdict
from ..judging.numbers import IntervalEstimate, as_correlation
from .tasks_points import SIGNAL
from .trends import (
    ALIKE,
    FREQUENCY,
    TRACE,
    other_trend,
    together,
    trend_figure,
    trend_lines,
    trend_rows,
    trend_table,
)

DATA = (  # the runs do not say which preset they were made with
    "Its inputs are images of digits, one token per pixel, not language: only the preset paper "
    "uses BoolQ, the paper's data."
)


def analyse(experiment: Experiment, rows: Sequence[Row]) -> Outcome:
    """Rank correlations along each run, as for the perceptron."""
    signal, activity = (as_correlation(together(rows, TRACE, name)) for name in (SIGNAL, FREQUENCY))
    apart = other_trend("trace and activation frequency do not show the same trend", activity)
    return Outcome(
        table=trend_table([], trend_rows([], rows)),
        figure=trend_figure(trend_lines("", rows)),
        findings=[apart],
        agrees=_agreement(apart, activity.n),
        conclusion=(
            "Along a run of the transformer the rank correlation of the trace is on average "
            f"{activity} with the activation frequency and {signal} with the first gradient, "
            f"at n = {activity.n}; at least {ALIKE:g} counts as the same trend. "
            f"{_kind(activity)} {DATA}"
        ),
    )


def _kind(activity: IntervalEstimate) -> str:
    """Whether the trend is opposite or absent, if it is not the same."""
    if activity.high < 0:
        return "The trend is opposite, not absent."
    if activity.value <= -ALIKE:
        return "The mean suggests an opposite trend; with so few runs it may also be none."
    if activity.low <= 0 <= activity.high:
        return "There is no clear trend, neither the same nor an opposite one."
    return ""


def _agreement(apart: Finding, n: int) -> Agreement:
    between = apart.result == "undecided" and n > 1  # one run has no interval
    return "partly" if between else verdict([apart])
