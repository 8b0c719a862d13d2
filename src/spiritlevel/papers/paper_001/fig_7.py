"""Paper 001, Fig. 7: trace, first gradient and activity of a perceptron in its first epoch."""

from __future__ import annotations

from collections.abc import Sequence

from ...pages.content import Cell, Series
from ..judging.experiment import Experiment, Outcome, Row
from ..judging.findings import verdict
from ..judging.numbers import as_correlation
from ..judging.rows import grouped
from .tasks_points import SIGNAL
from .trends import (
    ALIKE,
    FREQUENCY,
    TRACE,
    same_trend,
    together,
    trend_figure,
    trend_lines,
    trend_rows,
    trend_table,
)

RATE = "lr"


def analyse(experiment: Experiment, rows: Sequence[Row]) -> Outcome:
    """Rank correlations along each run: of the trace with the signal, and with the activity."""
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
            same_trend(f"learning rate {rate:g}: trace and {title} show the same trend", each)
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
            f"{ALIKE:g} counts as the same trend."
        ),
    )
