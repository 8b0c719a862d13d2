"""Paper 001, Fig. 8: a text transformer, where trace and activity do not move together."""

from __future__ import annotations

from collections.abc import Sequence

from ...claims.findings import Agreement, Finding, verdict
from ...claims.numbers import IntervalEstimate
from ...claims.trained import FIVE_GUESSES, Limit, Trained
from ..experiment import Experiment, Outcome, Row
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


def analyse(rows: Sequence[Row]) -> Outcome:
    """Rank correlations along each run, as for the perceptron."""
    signal, activity = (
        mean_correlations.as_correlation(together(rows, TRACE, name))
        for name in (SIGNAL, FREQUENCY)
    )
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


EXPERIMENT = Experiment(
    name="001-fig-8",
    title="a text transformer as a control",
    source="Fig. 8",
    claim=(
        "Activation frequency and Hessian trace move together only in perceptrons on MNIST: in a "
        "text transformer they do not."
    ),
    analyse=analyse,
    trained=Trained(
        (Limit(f"{TRAIN}/{POINTS}", at_least=FIVE_GUESSES, name="training accuracy at the end"),),
        "A trend along training needs a network that learns.",
    ),
    columns=("seed", *COLUMNS),
    rule=(
        "the rank correlation of trace and activation frequency along a run, on average over runs, "
        f"has its whole 95 % interval below {ALIKE:g}, the level at which 001-fig-7 counts it as "
        "the same trend. Not, if the mean is at least that and its interval above 0; partly in "
        "between."
    ),
    set_up=(
        "A small text transformer with ReLU, Adam, 7 epochs. Measured 12 times, after equal "
        f"numbers of batches. The first gradient is the mean of ‖p − y‖. {mean_correlations.HOW} "
        "That perceptrons show the same trend is looked at in 001-fig-7; that they alone do is "
        "tested by neither, as one other network cannot show it."
    ),
    scaled_down=ScaleTexts(
        "001-fig-8",
        {
            "": (
                "Digits read as texts of {model.length} tokens, one token per pixel, instead of "
                "BoolQ, which cannot be downloaded freely; {data.samples} training texts, "
                "width {model.width} and depth 2 instead of 21 million parameters, a learning "
                "rate of {training.lr} instead of 0.00002 because the network was not trained "
                "before, measured on {measure_options.samples} of the training texts with at "
                "most {measure_options.max_passes} probes for the part of the trace that is not "
                "Gauss-Newton; {seeds} seeds."
            ),
            "quick": ("{data.samples} texts, {training.epochs} epochs, {seeds} seeds: a trial."),
            "h200": (
                "Digits read as texts of {model.length} tokens, one token per pixel, instead of "
                "BoolQ, which cannot be downloaded freely; all {data.samples} training texts, "
                "width {model.width} and depth {model.depth} instead of 21 million parameters, "
                "a learning rate of {training.lr} instead of 0.00002, measured on "
                "{measure_options.samples} of the training texts; {seeds} seeds."
            ),
            "paper": (
                "Needs a file boolq.npz of your own with the token ids x_train, x_test (at most "
                "{model.length} per text, 0 as padding) and the answers y_train, y_test. A "
                "transformer of 20.9 million parameters with random initial weights; measured "
                "on {measure_options.samples} of the training texts; {seeds} seeds."
            ),
        },
    ),
    measures=MEASURES,
)
