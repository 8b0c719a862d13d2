"""Paper 000, Table 6: augmentation, the gap, and flatness of the head."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from ...claims import population
from ...claims.contrasts import difference, group_points, groups_of
from ...claims.factors import factor_by_seed
from ...claims.findings import (
    above,
    below,
    estimate,
    every,
    verdict,
)
from ...claims.numbers import IntervalEstimate, mean
from ...claims.population import CONFOUNDERS, FEW
from ...claims.rows import column
from ...claims.trained import FIT, Limit, Trained
from ...statistics import Correlation, partial_correlation, spearman
from ..experiment import (
    Cell,
    Experiment,
    Outcome,
    Row,
    Table,
)
from ..scale_text import ScaleTexts

HEAD, GAP = "head.kappa", "error_gap"
PLAIN, *AUGMENTED = VARIANTS = ("none", "basic", "auto", "mixup")
WORDS = {"none": "None", "basic": "Basic", "auto": "AutoAugment", "mixup": "Mixup"}
PAPER = {  # test accuracy, gap, flatness, correlation
    "none": (0.735, 0.265, 2.51, 0.584),
    "basic": (0.821, 0.179, 4.33, 0.691),
    "auto": (0.822, 0.178, 4.69, 0.702),
    "mixup": (0.806, 0.194, 5.04, 0.725),
}
PAPER_SPREADS = {  # standard deviations over its 20 runs, of the first three
    "none": (0.004, 0.004, 0.42),
    "basic": (0.004, 0.004, 0.49),
    "auto": (0.006, 0.006, 0.40),
    "mixup": (0.011, 0.011, 0.41),
}
COLUMNS = ("test_accuracy", GAP, HEAD)
NAMES = ("test accuracy", "gap of the accuracies", "relative flatness of the head", "Spearman")
SPREADS = tuple(f"{name}, standard deviation" for name in NAMES[:3])


def analyse(rows: Sequence[Row]) -> Outcome:
    """Each augmentation against none, seed by seed; and flatness against the gap within each."""
    groups = groups_of(rows, "variant", VARIANTS)
    ours = {augmentation: _numbers(group) for augmentation, group in groups.items()}
    plain, others = (
        groups.get(PLAIN, []),
        {augmentation: groups.get(augmentation, []) for augmentation in AUGMENTED},
    )
    changes = {
        augmentation: difference(group, plain, GAP) for augmentation, group in others.items()
    }
    factors = {
        augmentation: factor_by_seed(plain, group, HEAD) for augmentation, group in others.items()
    }
    within = _within(rows)
    table: list[list[Cell]] = [
        [
            WORDS[augmentation],
            len(groups[augmentation]),
            *numbers,
            changes.get(augmentation),
            factors.get(augmentation),
        ]
        for augmentation, numbers in ours.items()
    ]
    findings = [
        every(
            "each augmentation narrows the gap (gap, less that without)",
            [below(WORDS[augmentation], numbers) for augmentation, numbers in changes.items()],
        ),
        every(
            "each augmentation leads to larger flatness (flatness over that without)",
            [above(WORDS[augmentation], numbers, 1.0) for augmentation, numbers in factors.items()],
        ),
        # The paper has one correlation per augmentation, so no number to compare this with.
        above("flatness rises with the gap, the augmentation held fixed", within),
    ]
    return Outcome(
        table=Table(
            (
                *("augmentation", "n", *NAMES),
                *("gap, less that without", "flatness over that without"),
            ),
            table,
        ),
        figure=group_points(
            {WORDS[augmentation]: group for augmentation, group in groups.items()},
            HEAD,
            GAP,
            HEAD,
            NAMES[1],
        ),
        why=_why(rows, groups),
        beside={
            f"{name}, {WORDS[augmentation]}": each
            for augmentation, numbers in ours.items()
            for name, each in zip(
                (*NAMES, *SPREADS), (*numbers, *_spreads(groups[augmentation])), strict=True
            )
        },
        findings=findings,
        agrees=verdict(findings),
        conclusion=(
            f"Against none, the gap of the accuracies changes by {_listing(changes)} and relative "
            f"flatness of the head is multiplied by {_listing(factors)}; within the four "
            f"augmentations, flatness and gap have a rank correlation of {within} (n = {within.n})."
        ),
    )


def _numbers(group: Sequence[Row]) -> list[IntervalEstimate]:
    shown = [mean(column(group, name)) for name in COLUMNS]
    rank = spearman(column(group, HEAD), column(group, GAP))
    return [*shown, estimate(rank)]


def _spreads(group: Sequence[Row]) -> list[IntervalEstimate]:
    """Standard deviations over runs; one run has none."""
    spreads = []
    for name in COLUMNS:
        values = [v for v in column(group, name) if v is not None and math.isfinite(v)]
        spread = statistics.stdev(values) if len(values) > 1 else math.nan
        spreads.append(IntervalEstimate(spread, math.nan, math.nan, len(values)))
    return spreads


def _within(rows: Sequence[Row]) -> Correlation:
    """The correlation over all runs, with 0-1 columns that hold the augmentation fixed."""
    indicators = {
        augmentation: [float(row["variant"] == augmentation) for row in rows]
        for augmentation in AUGMENTED
    }
    return partial_correlation(column(rows, HEAD), column(rows, GAP), indicators, kind="spearman")


def _why(rows: Sequence[Row], groups: dict[str, list[Row]]) -> str:
    """The training accuracy under each augmentation, and what else explains the correlation."""
    if len(rows) < FEW:
        return ""
    learnt = {
        augmentation: mean(column(group, "train_accuracy"))
        for augmentation, group in groups.items()
    }
    accuracies = f"At the end of training the training accuracy is {_listing(learnt)}."
    if any(all(row.get(name) is None for row in rows) for name in CONFOUNDERS):
        return accuracies  # an old record without the confounders
    of_accuracies = [{**row, population.GAP: row[GAP]} for row in rows]
    return f"{accuracies} {population.why(of_accuracies, HEAD, NAMES[2])}"


def _listing(numbers: dict[str, IntervalEstimate]) -> str:
    return ", ".join(
        f"{each} {'without' if augmentation == PLAIN else f'with {WORDS[augmentation]}'}"
        for augmentation, each in numbers.items()
    )


EXPERIMENT = Experiment(
    name="000-table-6",
    title="four augmentations, the gap and flatness of the head",
    source="Table 6",
    claim=(
        "Augmentation narrows the generalization gap and moves networks to larger relative "
        "flatness, and under each augmentation flatness correlates positively with the gap."
    ),
    analyse=analyse,
    trained=Trained(
        (Limit("train_accuracy", at_least=FIT),),
        "In the paper's table the gap and the test accuracy add up to 1, so its networks fit their "
        "training images without error.",
        by="variant",
    ),
    columns=(
        *("outcome", "variant", "seed", "train_accuracy", "test_accuracy", GAP),
        *(*CONFOUNDERS, HEAD),
    ),
    rule=(
        "three things hold, each with its whole 95 % interval: under all three augmentations the "
        "gap of the accuracies is smaller than without (paired by seed), under all three flatness "
        "is larger (its ratio by seed), and the rank correlation of flatness with the gap, with "
        "the augmentation held fixed, is above 0. Partly, if one or two hold."
    ),
    set_up=(
        "No augmentation, random crops and flips (4 pixels), the AutoAugment policy for CIFAR-10, "
        "and mixup (alpha 1); by SGD with momentum 0.9 at a rate of 0.01. Padding, alpha, "
        "optimizer, rate and batch size are our choice: the paper gives none of them. Accuracy, "
        "gap and flatness are measured on images that are not "
        "augmented. By its numbers, the paper's gap is that of the accuracies. Fig. 9 has a page "
        "of its own on the same networks, 000-fig-9."
    ),
    scaled_down=ScaleTexts(
        "000-table-6",
        {
            "": (
                "VGG-small of width {model.width} (He initialization) instead of ResNet-18, "
                "{data.samples} CIFAR-10 images instead of 50,000, {training.epochs} epochs, "
                "{seeds} seeds each instead of 20, measured on {measure_options.samples} "
                "images."
            ),
            "quick": (
                "Width {model.width}, {data.samples} images, {training.epochs} epochs, {seeds} "
                "seeds each: a trial."
            ),
            "small-trained": (
                "VGG-small of width {model.width} (He initialization) instead of ResNet-18, "
                "{data.samples} CIFAR-10 images instead of 50,000, at most {training.epochs} "
                "epochs, to a training accuracy of {stop.train_accuracy}; {seeds} seeds each "
                "instead of 20, measured on {measure_options.samples} images."
            ),
            "paper": (
                "Measured on {measure_options.samples} of the {data.samples} images; "
                "{training.epochs} epochs, which the paper does not give."
            ),
            "h200": (
                "{data.samples} images, {training.epochs} epochs, {seeds} seeds each instead of "
                "20, measured on {measure_options.samples} images."
            ),
            "h200-trained": (
                "{data.samples} images, at most {training.epochs} epochs, to a training accuracy "
                "of {stop.train_accuracy}, {seeds} seeds each instead of "
                "20, measured on {measure_options.samples} images."
            ),
            "h200-narrow": (
                "Width {model.width} instead of 64, {data.samples} images, at most "
                "{training.epochs} epochs of a rate that falls from 0.01 to 0, to a training "
                "accuracy of {stop.train_accuracy}, {seeds} seeds each instead of 20, measured on "
                "{measure_options.samples} images."
            ),
        },
    ),
    measures=(HEAD,),
    paper_values={
        f"{name}, {WORDS[way]}": value
        for way, values in PAPER.items()
        for name, value in zip((*NAMES, *SPREADS), (*values, *PAPER_SPREADS[way]), strict=True)
    },
)
