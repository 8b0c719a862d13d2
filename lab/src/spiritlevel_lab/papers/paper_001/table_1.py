"""Paper 001, Table 1: dead feature maps make a network flatter, and worse."""

from __future__ import annotations

from collections.abc import Sequence

from ...claims.contrasts import difference
from ...claims.factors import ratios
from ...claims.findings import below, verdict
from ...claims.numbers import IntervalEstimate, mean
from ...claims.rows import column, grouped
from ...claims.trained import Limit, Trained
from ..experiment import (
    Cell,
    Experiment,
    Figure,
    Outcome,
    Row,
    Series,
    Table,
)
from ..scale_text import ScaleTexts
from .accuracy_reached import OUTCOME, TITLE, how_many

MASK = "interventions.mask"
LARGEST = "curvature.lambda_max"
SHOWN = ("train_accuracy", "test_accuracy", "epoch", LARGEST, "curvature.trace", "relative.kappa")
WORDS = {0.0: "unmasked", 0.7: "70 % masked"}


def analyse(rows: Sequence[Row]) -> Outcome:
    """Compare masked with unmasked networks of a seed: which is flatter, which is worse?"""
    groups = grouped(rows, MASK)
    table: list[list[Cell]] = [
        [
            WORDS[mask],
            len(group),
            how_many(group),
            *(mean(column(group, name)) for name in SHOWN),
        ]
        for mask, group in groups.items()
    ]
    worse = _masked_less_plain(groups, "test_accuracy")
    flatter = _masked_less_plain(groups, LARGEST)
    findings = [
        below("test accuracy is lower with masked maps", worse),
        below("the largest eigenvalue is smaller with masked maps", flatter),
    ]
    return Outcome(
        table=Table(("version", "n", TITLE, *SHOWN), table),
        figure=Figure(
            "largest eigenvalue of the Hessian",
            "test accuracy",
            [
                Series(WORDS[mask], column(group, LARGEST), column(group, "test_accuracy"))
                for mask, group in groups.items()
            ],
            log_x=True,
            points=True,
        ),
        beside={
            f"{name}, {WORDS[mask]}": mean(column(group, key))
            for mask, group in groups.items()
            for name, key in (
                ("training accuracy", "train_accuracy"),
                ("test accuracy", "test_accuracy"),
                ("largest eigenvalue", LARGEST),
            )
        },
        findings=findings,
        agrees=verdict(findings),
        more=[
            ratios(
                {WORDS[mask]: group for mask, group in groups.items()},
                WORDS[0.0],
                (LARGEST, "curvature.trace"),
            )
        ],
        conclusion=(
            f"With 70 % of the feature maps dead the test accuracy changes by {worse} and the "
            f"largest eigenvalue by {flatter} (paired by seed, n = {worse.n})."
        ),
    )


def _masked_less_plain(groups: dict[float, list[Row]], name: str) -> IntervalEstimate:
    return difference(groups.get(0.7, []), groups.get(0.0, []), name)


EXPERIMENT = Experiment(
    name="001-table-1",
    title="masked feature maps",
    source="Table 1",
    claim=(
        "With 70 % of the feature maps set to zero throughout training, a network of the same "
        "training accuracy generalizes worse although its largest Hessian eigenvalue is smaller."
    ),
    analyse=analyse,
    trained=Trained(
        (Limit("outcome", reached=("train_accuracy",)),),
        "The claim compares networks of the same training accuracy.",
        by=MASK,
    ),
    columns=(MASK, "seed", OUTCOME, "train_loss", *SHOWN),
    rule=(
        "both the test accuracy and the largest eigenvalue of the masked networks are lower, each "
        "with the whole 95 % interval of the difference paired by seed below 0. Partly, if one is."
    ),
    set_up=(
        "VGG-small, SGD with learning rate 0.01 and momentum 0.9, until all reach the same "
        "training accuracy. Which maps are dead is drawn once for each seed and convolution. "
        "That whole maps are dead is our reading: the paper masks a fixed share of the feature "
        "maps and does not say in which unit, but counts dead outputs position by position. "
        "A mask of single positions would leave every map alive and may give other results."
    ),
    scaled_down=ScaleTexts(
        "001-table-1",
        {
            "": (
                "MNIST instead of CIFAR-10, {data.samples} training images instead of 50,000 in "
                "batches of {training.batch_size}, trained to {stop.train_accuracy:%} instead "
                "of about 90 %, a width of {model.width} instead of 64, measured on "
                "{measure_options.samples} of the training images; {seeds} seeds instead of 2."
            ),
            "quick": (
                "MNIST, {data.samples} images, a width of {model.width}, at most "
                "{training.epochs} epochs, {seeds} seeds."
            ),
            "h200": (
                "{data.samples} training images instead of 50,000, measured on "
                "{measure_options.samples} of them; {seeds} seeds instead of 2."
            ),
            "paper": (
                "Measured on {measure_options.samples} of the training images; {seeds} seeds "
                "instead of 2."
            ),
        },
    ),
    measures=(LARGEST, "curvature.trace", "relative.kappa"),
    paper_values={  # means of the two runs the paper prints
        "training accuracy, unmasked": (0.9143 + 0.8843) / 2,
        "test accuracy, unmasked": (0.7868 + 0.7911) / 2,
        "largest eigenvalue, unmasked": (317.2083 + 350.7079) / 2,
        "training accuracy, 70 % masked": (0.8917 + 0.9058) / 2,
        "test accuracy, 70 % masked": (0.6437 + 0.6572) / 2,
        "largest eigenvalue, 70 % masked": (151.6612 + 127.9235) / 2,
    },
    paper_runs=4,
)
