"""Paper 001, Fig. 4: the first epochs of ResNet-18 with several steps on each batch."""

from __future__ import annotations

from collections.abc import Sequence

from ...claims.contrasts import line
from ...claims.findings import above, below, verdict
from ...claims.numbers import mean
from ...claims.rows import column, grouped
from ...claims.trained import FIVE_GUESSES, Limit, Trained
from ..experiment import (
    Cell,
    Experiment,
    Outcome,
    Row,
    Table,
)
from ..scale_text import ScaleTexts
from .batch_cycles import (
    CYCLES,
    GINI,
    TRACE,
    follow,
    trend_in_words,
)
from .log_figure import log_figure
from .tasks_points import (
    STEP,
    TEST,
    TRAIN,
    steps_at,
)

POINTS = 5
MEASURES = (TRACE, GINI)
SHOWN = (TRAIN, TEST, *MEASURES)


def analyse(rows: Sequence[Row]) -> Outcome:
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
        follow(rows, f"{TRACE}/1"),
        follow(rows, f"{TRACE}/{POINTS}"),
        follow(rows, f"{GINI}/{POINTS}"),
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
            f"{trend_in_words(at_first)}; at the last the trace {trend_in_words(trained)} and 1 − "
            f"‖p‖² {trend_in_words(certain)}."
        ),
    )


EXPERIMENT = Experiment(
    name="001-fig-4",
    title="several steps on each batch of ResNet-18",
    source="Fig. 4",
    claim=(
        "In the first 15 epochs of a ResNet-18 with norms held fixed, more steps R on each batch "
        "give a larger Hessian trace early, and later a smaller one along with outputs closer to "
        "one-hot."
    ),
    analyse=analyse,
    trained=Trained(
        (Limit(f"{TRAIN}/{POINTS}", at_least=FIVE_GUESSES, name="training accuracy at the end"),),
        "What happens later in training can only be seen in a network that has learned by then.",
        by=CYCLES,
    ),
    columns=(
        CYCLES,
        "seed",
        "outcome",
        *(f"{name}/{p}" for p in range(1, POINTS + 1) for name in (STEP, *SHOWN)),
    ),
    rule=(
        "the 95 % intervals of three rank correlations with R over runs: with the trace at the "
        "first of five points in training above 0; with the trace, and with 1 − ‖p‖², at the last "
        "below 0. Partly, if some do. The paper prints no numbers and does not say in words what "
        "the figure shows: the claim is taken from its Table 2."
    ),
    set_up=(
        "ResNet-18 with its BatchNorm layers replaced by a normalization of each sample and "
        "weights of mean 0 and variance 2/n_in after each step; SGD with learning rate 0.01 and "
        "momentum 0.9. Measured five times, after equal numbers of batches."
    ),
    scaled_down=ScaleTexts(
        "001-fig-4",
        {
            "": (
                "{data.samples} training images of CIFAR-10 instead of 50,000 in batches of "
                "{training.batch_size}, a width of {model.width} instead of 64, "
                "{training.epochs} epochs instead of 15, measured on {measure_options.samples} "
                "of the training images with at most {measure_options.max_passes} probes for "
                "the part of the trace that is not Gauss-Newton; {seeds} seeds."
            ),
            "quick": (
                "{data.samples} images, {training.epochs} epochs, R = "
                "{grid.interventions.batch_cycles}, {seeds} seed: a trial."
            ),
            "one-core": (
                "Handwritten digits of 8×8 pixels instead of CIFAR-10, {data.samples} training "
                "images instead of 50,000 in batches of {training.batch_size}, width "
                "{model.width} instead of 64, {training.epochs} epochs, measured on "
                "{measure_options.samples} of the training images with at most "
                "{measure_options.max_passes} probes for the part of the trace that is not "
                "Gauss-Newton; {seeds} seeds."
            ),
            "h200": (
                "{data.samples} training images instead of 50,000, measured on "
                "{measure_options.samples} of the training images; {seeds} seeds."
            ),
            "paper": (
                "Measured on {measure_options.samples} of the training images; {seeds} seeds."
            ),
        },
    ),
    measures=MEASURES,
)
