"""Paper 001, Fig. 2: shifting the first bias changes how often units fire, and the trace."""

from __future__ import annotations

from collections.abc import Sequence

from ...claims.findings import above, estimate, verdict
from ...claims.numbers import IntervalEstimate, mean, plain
from ...claims.rows import column, grouped
from ...claims.trained import FIVE_GUESSES, Limit, Trained
from ...statistics import Correlation, spearman
from ..experiment import (
    Cell,
    Experiment,
    Figure,
    Outcome,
    Row,
    Series,
    Table,
    titled,
)
from ..scale_text import ScaleTexts
from .confounded_trends import ConfoundedTrend

SHIFT = "interventions.bias_shift"
FREQUENCY, TRACE = "activity.frequency", "curvature.trace"
SHOWN = ("train_accuracy", "test_accuracy", "train_loss", FREQUENCY, TRACE, "relative.kappa")
LEARNED = ConfoundedTrend(SHIFT, "the shift", "train_loss", "the training loss")


def analyse(rows: Sequence[Row]) -> Outcome:
    """Rank correlations of the shift with activation frequency and with the trace, over runs."""
    groups = grouped(rows, SHIFT)
    means = {s: [mean(column(group, name)) for name in SHOWN] for s, group in groups.items()}
    table: list[list[Cell]] = [[s, len(groups[s]), *values] for s, values in means.items()]
    shifts = column(rows, SHIFT)
    fires, sharper = (spearman(shifts, column(rows, name)) for name in (FREQUENCY, TRACE))
    findings = [
        above("units fire more often as the bias is shifted up", fires),
        above("the trace rises with the shift", sharper),
    ]
    return Outcome(
        table=Table(("shift of the bias", "n", *SHOWN), table),
        figure=Figure(
            "shift of the first layer's bias",
            "relative to the mean over all runs",
            [_line(means, name) for name in (FREQUENCY, TRACE)],
        ),
        findings=findings,
        agrees=verdict(findings),
        why=LEARNED.why(rows, TRACE, "the trace"),
        more=[*_each_layer(rows), LEARNED.section(rows, (FREQUENCY, TRACE))],
        conclusion=(
            f"With the shift the activation frequency {_words(fires)} (Spearman {fires}) and the "
            f"Hessian trace {_words(sharper)} (Spearman {sharper}), n = {fires.n}; over "
            f"these runs test accuracy lies between {_range(rows, 'test_accuracy')}, training loss "
            f"between {_range(rows, 'train_loss')}."
        ),
    )


def _each_layer(rows: Sequence[Row]) -> list[Table]:
    """What Fig. 2 (c) shows; nothing if the layers were not recorded."""
    layers = sorted({key for row in rows for key in row if key.startswith(f"{FREQUENCY}[")})
    if not layers:
        return []
    table: list[list[Cell]] = [
        [shift, len(group), *(mean(column(group, layer)) for layer in layers)]
        for shift, group in grouped(rows, SHIFT).items()
    ]
    ranks = (spearman(column(rows, SHIFT), column(rows, layer)) for layer in layers)
    table.append(["Spearman with the shift", len(rows), *map(estimate, ranks)])
    return [
        titled(
            "The activation frequency of each layer",
            "Shown as in the paper's figure and not judged; the table above has their mean.",
            Table(("shift of the bias", "n", *layers), table),
        )
    ]


def _words(trend: Correlation) -> str:
    if trend.low > 0:
        return "rises"
    return "falls" if trend.high < 0 else "does not clearly rise or fall"


def _range(rows: Sequence[Row], name: str) -> str:
    """The range over single runs: means of groups would hide the worst of them."""
    values = [value for value in column(rows, name) if value is not None]
    return f"{plain(min(values), 3)} and {plain(max(values), 3)}"


def _line(means: dict[float, list[IntervalEstimate]], name: str) -> Series:
    values = [estimates[SHOWN.index(name)] for estimates in means.values()]
    unit = sum(e.value for e in values) / len(values)
    return Series(
        name,
        list(means),
        [e.value / unit for e in values],
        [e.low / unit for e in values],
        [e.high / unit for e in values],
    )


EXPERIMENT = Experiment(
    name="001-fig-2",
    title="a shifted bias of the first layer",
    source="Fig. 2",
    claim=(
        "When the bias of the first layer is shifted from -1 to 1, units fire more often and the "
        "Hessian trace rises too."
    ),
    analyse=analyse,
    trained=Trained(
        (Limit("train_accuracy", at_least=FIVE_GUESSES),),
        "A network that only guesses has a small trace whatever its biases are.",
        by=SHIFT,
    ),
    columns=(SHIFT, "seed", "test_loss", *SHOWN),
    rule=(
        "the 95 % intervals of both rank correlations over runs lie above 0: of the shift with the "
        "activation frequency, and of the shift with the trace. Partly, if one does."
    ),
    set_up=(
        "VGG-small, SGD with learning rate 0.01 and momentum 0.9, 7 epochs. The shift is added to "
        "every bias of the first convolution before training; the paper does not say whether it "
        "does so before or after. Its figure shows the activation frequency of each layer; here "
        "their mean is judged."
    ),
    scaled_down=ScaleTexts(
        "001-fig-2",
        {
            "": (
                "MNIST instead of CIFAR-10, {data.samples} training images instead of 50,000 in "
                "batches of {training.batch_size}, a width of {model.width} instead of 64, "
                "measured on {measure_options.samples} of the training images; "
                "{grid.interventions.bias_shift:count} shifts with {seeds} seeds each."
            ),
            "quick": (
                "MNIST, {data.samples} images, {training.epochs} epochs, "
                "{grid.interventions.bias_shift:count} shifts with {seeds} seeds each."
            ),
            "one-core": (
                "MNIST instead of CIFAR-10, {data.samples} training images instead of 50,000 in "
                "batches of {training.batch_size}, a width of {model.width} instead of 64, "
                "measured on {measure_options.samples} of the training images; "
                "{grid.interventions.bias_shift:count} shifts with {seeds} seeds each."
            ),
            "h200": (
                "{data.samples} training images instead of 50,000, measured on "
                "{measure_options.samples} of them; {grid.interventions.bias_shift:count} "
                "shifts with {seeds} seeds each."
            ),
            "paper": (
                "Measured on {measure_options.samples} of the training images; "
                "{grid.interventions.bias_shift:count} shifts with {seeds} seeds each."
            ),
        },
    ),
    measures=(TRACE, FREQUENCY, "relative.kappa"),
    layers=(FREQUENCY,),
)
