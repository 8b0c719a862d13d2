"""Paper 000, Table 4 and Fig. 5: flatness of the head while a network is trained."""

from __future__ import annotations

from collections.abc import Sequence

from ...claims.contrasts import groups_of, line
from ...claims.factors import factor
from ...claims.findings import below, verdict
from ...claims.numbers import IntervalEstimate, mean
from ...claims.rows import column
from ...claims.trained import LEARNED_LOSS, Limit, Trained
from ..experiment import (
    Cell,
    Experiment,
    Figure,
    Outcome,
    Row,
    Table,
)
from ..scale_text import ScaleTexts
from .tasks_dynamics import (
    ACCURACY,
    FIRST,
    FLATNESS,
    LOSS,
    MIRRORED,
    SHARES,
    TEST_LOSS,
    distinct_shares,
)

VARIANTS = ("slow", "fast")
LAST = f"{FLATNESS}/100"
SHOWN = ("test_accuracy", "error_gap", "head.kappa")
NAMES = ("test accuracy", "gap of the accuracies", "relative flatness of the head")


def analyse(rows: Sequence[Row]) -> Outcome:
    """Does flatness fall from the first epoch to the last, and against the accuracy?"""
    groups = groups_of(rows, "variant", VARIANTS)
    shares = distinct_shares(rows, FLATNESS)
    table: list[list[Cell]] = [
        [
            variant,
            len(group),
            *(mean(column(group, name)) for name in SHOWN),
            *(mean(column(group, f"{FLATNESS}/{share}")) for share in shares),
            _fall(group),
            mean(column(group, MIRRORED)),
        ]
        for variant, group in groups.items()
    ]
    fall, mirror = _fall(rows), mean(column(rows, MIRRORED))
    findings = [
        below("flatness is lower after the last epoch than after the first (ratio)", fall, 1.0),
        below(
            "over the epochs, accuracy mirrors flatness: their rank correlation is negative", mirror
        ),
    ]
    return Outcome(
        table=Table(
            (
                *("variant", "n", *NAMES),
                *(f"flatness after {share} % of the epochs" for share in shares),
                "last over first epoch",
                "rank correlation with test accuracy over epochs",
            ),
            table,
        ),
        figure=Figure(
            "% of the epochs",
            "relative flatness of the head",
            [
                line(variant, shares, [mean(column(group, f"{FLATNESS}/{s}")) for s in shares])
                for variant, group in groups.items()
            ],
        ),
        beside={
            f"{name}, {variant}": mean(column(group, key))
            for variant, group in groups.items()
            for name, key in zip(NAMES, SHOWN, strict=True)
        },
        why=_why(rows),
        findings=findings,
        agrees=verdict(findings),
        conclusion=(
            "From the first epoch to the last the head's relative flatness is multiplied by "
            f"{fall} (n = {fall.n}), and over the epochs of a network it has a rank correlation of "
            f"{mirror} with the test accuracy."
        ),
    )


def _why(rows: Sequence[Row]) -> str:
    """When in training flatness is largest, and how the accuracy changes before and after."""
    names = [f"{name}/{share}" for name in (FLATNESS, ACCURACY) for share in SHARES]
    complete = [row for row in rows if all(row.get(name) is not None for name in names)]
    if not complete:
        return ""
    peaks = [max(SHARES, key=lambda share: row[f"{FLATNESS}/{share}"]) for row in complete]
    flatness, accuracy = (
        [
            [row[f"{name}/{s}"] for s in (0, peak, 100)]
            for row, peak in zip(complete, peaks, strict=True)
        ]
        for name in (FLATNESS, ACCURACY)
    )
    alike = sum(a[0] < a[1] and f[0] < f[1] for f, a in zip(flatness, accuracy, strict=True))
    mirror = sum(a[1] < a[2] and f[1] > f[2] for f, a in zip(flatness, accuracy, strict=True))
    return (
        f"At the times of the table, flatness is largest after {mean(map(float, peaks))} % of the "
        f"epochs: it is {_on_the_way(flatness)}; the test accuracy is {_on_the_way(accuracy)}. "
        f"From the start to that time both rise in {alike} of {len(complete)} runs; from then to "
        f"the end flatness falls while the accuracy rises in {mirror}."
    )


def _on_the_way(looks: Sequence[Sequence[float]]) -> str:
    start, peak, end = (mean(each) for each in zip(*looks, strict=True))
    return f"{start} before training, {peak} at that time and {end} at the end"


def _fall(rows: Sequence[Row]) -> IntervalEstimate:
    return factor((row[FIRST], row[LAST]) for row in rows)


EXPERIMENT = Experiment(
    name="000-table-4",
    title="flatness of the head during training",
    source="Table 4, Fig. 5",
    claim=(
        "In the best runs, SGD with momentum, relative flatness of the head starts high, falls "
        "fast and settles low, while the validation accuracy mirrors it and rises."
    ),
    analyse=analyse,
    trained=Trained(
        (Limit("train_loss", at_most=LEARNED_LOSS),),
        "The claim is about the paper's best runs.",
        by="variant",
    ),
    columns=(
        *("outcome", "variant", "seed", "train_loss", *SHOWN, FIRST, MIRRORED),
        *(f"{n}/{share}" for n in (FLATNESS, LOSS, TEST_LOSS, ACCURACY) for share in SHARES),
    ),
    rule=(
        "flatness after the last epoch divided by that after the first is below 1, and the rank "
        "correlation of flatness with test accuracy over the epochs of a network is below 0 on "
        "average, each with its whole 95 % interval over all runs. Partly, if one holds."
    ),
    set_up=(
        "SGD with momentum 0.9 at the two settings of the paper's four best runs: rate 0.005 with "
        "batches of 64 (slow) and rate 0.01 with batches of 128 (fast); flatness of the 1×1 "
        "convolution that is the head, measured before training and after every epoch. The "
        "paper's numbers for slow are means of the three runs it prints, for fast it has one. Its "
        "gap is that of the accuracies, by its numbers: gap and accuracy add up to little "
        "less than 1, although the paper's equation uses losses."
    ),
    scaled_down=ScaleTexts(
        "000-table-4",
        {
            "": (
                "Handwritten digits of 8×8 pixels ({data.samples} images) instead of CIFAR-10, "
                "and a small convolutional network with the same kind of head instead of "
                "ResNet-18. Random initial weights instead of ones trained on ImageNet; rates "
                "of {variants.lr} with batches of {variants.batch_size}, {training.epochs} "
                "epochs instead of 50, measured on {measure_options.samples} images; {seeds} "
                "seeds each."
            ),
            "quick": ("The same with {training.epochs} epochs and {seeds} seeds each: a trial."),
            "paper": (
                "Random initial weights; measured on {measure_options.samples} of the "
                "{data.samples} images; {seeds} seeds each."
            ),
            "h200": (
                "Random initial weights, {data.samples} CIFAR-10 images, {training.epochs} "
                "epochs instead of 50, measured on {measure_options.samples} of them; {seeds} "
                "seeds each."
            ),
            "h200-imagenet": (
                "EfficientNet-Lite0 with ImageNet weights, at {model.size} pixels; {data.samples} "
                "CIFAR-10 images, {training.epochs} epochs instead of 50, measured on "
                "{measure_options.samples} of them; {seeds} seeds each."
            ),
            "h200-cifar100": (
                "Width {model.width} instead of 64, from weights trained on 20,000 images of "
                "CIFAR-100 instead of ImageNet's; {data.samples} CIFAR-10 images, "
                "{training.epochs} epochs instead of 50, measured on {measure_options.samples} of "
                "the images; {seeds} seeds each."
            ),
        },
    ),
    measures=("head.kappa",),
    paper_values={
        "test accuracy, slow": (0.9687 + 0.9675 + 0.9675) / 3,
        "gap of the accuracies, slow": (0.0299 + 0.0310 + 0.0311) / 3,
        "relative flatness of the head, slow": (119.28 + 148.91 + 127.16) / 3,
        "test accuracy, fast": 0.9677,
        "gap of the accuracies, fast": 0.0308,
        "relative flatness of the head, fast": 89.85,
    },
    paper_runs=4,
)
