"""Paper 001, Fig. 7: trace, first gradient and activity of a perceptron in its first epoch."""

from __future__ import annotations

from collections.abc import Sequence

from ...claims.findings import verdict
from ...claims.rows import grouped
from ...claims.trained import Limit, Trained
from ..experiment import (
    Cell,
    Experiment,
    Outcome,
    Row,
    Series,
)
from ..scale_text import ScaleTexts
from . import mean_correlations
from .tasks_points import SIGNAL, TRAIN
from .trends import (
    ALIKE,
    COLUMNS,
    FREQUENCY,
    MEASURES,
    POINTS,
    TRACE,
    same_trend,
    together,
    trend_figure,
    trend_lines,
    trend_rows,
    trend_table,
)

RATE = "lr"


def analyse(rows: Sequence[Row]) -> Outcome:
    """Rank correlations along each run: of the trace with the signal, and with the activity."""
    table: list[list[Cell]] = []
    lines: list[Series] = []
    findings, said = [], []
    for rate, group in grouped(rows, RATE).items():
        table += trend_rows([rate], group)
        lines += trend_lines(f"rate {rate:g}: ", group)
        signal, activity = (
            mean_correlations.as_correlation(together(group, TRACE, name))
            for name in (SIGNAL, FREQUENCY)
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


EXPERIMENT = Experiment(
    name="001-fig-7",
    title="a perceptron in its first epoch",
    source="Fig. 7",
    claim=(
        "In one epoch of a perceptron on MNIST, the Hessian trace, the gradient with which "
        "backpropagation starts and the activation frequency show nearly the same trend."
    ),
    analyse=analyse,
    trained=Trained(
        (Limit(f"{TRAIN}/{POINTS}", at_least=0.8, name="training accuracy at the end"),),
        "A perceptron on MNIST reaches more than that in one epoch if it learns.",
        by="lr",
    ),
    columns=(RATE, "seed", *COLUMNS),
    rule=(
        "for both learning rates, the rank correlation of the trace along a run, with the norm of "
        "the first gradient and with the activation frequency, is on average over runs at least "
        f"{ALIKE:g} and its 95 % interval lies above 0. Partly, if some of the four are."
    ),
    set_up=(
        "A perceptron with one hidden layer of 128 and ReLU, one epoch of SGD without momentum at "
        "learning rates 0.01 and 0.1 in batches of 64; the paper does not give their size. "
        "Measured 12 times, after equal numbers of batches. The first gradient is the mean of ‖p − "
        f"y‖. {mean_correlations.HOW}"
    ),
    scaled_down=ScaleTexts(
        "001-fig-7",
        {
            "": (
                "Measured on {measure_options.samples} of the 60,000 training images; {seeds} "
                "seeds instead of one."
            ),
            "quick": (
                "{data.samples} training images, measured on {measure_options.samples}, {seeds} "
                "seeds: a trial."
            ),
            "h200": (
                "Measured on {measure_options.samples} of the training images; {seeds} seeds "
                "instead of one."
            ),
            "paper": (
                "Measured on {measure_options.samples} of the training images; {seeds} seeds "
                "instead of one."
            ),
        },
    ),
    measures=MEASURES,
    paper_runs=2,
)
