"""Paper 001, Fig. 4: the first epochs of ResNet-18 with several steps on each batch."""

from __future__ import annotations

from collections.abc import Sequence

from ...pages.content import Cell, Table
from ...study.statistics import Correlation, spearman
from ..judging.contrasts import line
from ..judging.experiment import Experiment, Outcome, Row
from ..judging.findings import above, below, verdict
from ..judging.numbers import mean
from ..judging.rows import column, grouped
from ..recipes.figures import log_figure
from ..recipes.sentences import counted_trend
from .tasks_points import TEST, TRAIN, steps_at

CYCLES = "interventions.batch_cycles"
TRACE, GINI = "curvature.trace", "softmax.gini"
POINTS = 5
MEASURES = (TRACE, GINI)
SHOWN = (TRAIN, TEST, *MEASURES)


def analyse(experiment: Experiment, rows: Sequence[Row]) -> Outcome:
    """Rank correlations of R with the trace at the first point, with trace and gini at the last."""
    groups = grouped(rows, CYCLES)
    table: list[list[Cell]] = []
    lines = []
    for cycles, group in groups.items():
        means = [
            [mean(column(group, f"{name}/{point}")) for name in SHOWN]
            for point in range(1, POINTS + 1)
        ]
        steps = steps_at(group, POINTS)
        table += [
            [cycles, step, len(group), *estimates]
            for step, estimates in zip(steps, means, strict=True)
        ]
        traces = [estimates[SHOWN.index(TRACE)] for estimates in means]
        lines.append(line(f"R = {cycles}", steps, traces))
    at_first, trained, certain = (
        _with_cycles(rows, f"{TRACE}/1"),
        _with_cycles(rows, f"{TRACE}/{POINTS}"),
        _with_cycles(rows, f"{GINI}/{POINTS}"),
    )
    findings = [
        above("the trace at the first point rises with R", at_first),
        below("the trace at the last point falls with R", trained),
        below("1 − ‖p‖² at the last point falls with R", certain),
    ]
    return Outcome(
        table=Table(("R", "batches", "n", *SHOWN), table),
        figure=log_figure("batches", "trace of the Hessian", lines),
        findings=findings,
        agrees=verdict(findings),
        conclusion=(
            "With more steps R on each batch the trace at the first point "
            f"{counted_trend(at_first)}; at the last the trace {counted_trend(trained)} and 1 − "
            f"‖p‖² {counted_trend(certain)}."
        ),
    )


def _with_cycles(rows: Sequence[Row], name: str) -> Correlation:
    """How a number follows the steps on each batch, over runs."""
    return spearman(column(rows, CYCLES), column(rows, name))
