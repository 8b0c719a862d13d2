"""Paper 001, Table 5: dead feature maps in ResNet-18; a smaller trace, the same eigenvalue."""

from __future__ import annotations

from collections.abc import Sequence

from ...claims.contrasts import difference, group_points, group_table
from ...claims.factors import ratios
from ...claims.findings import below, unmoved, verdict
from ...claims.numbers import IntervalEstimate, mean
from ...claims.rows import column
from ...claims.trained import Limit, Trained
from ..experiment import Experiment, Outcome, Row
from ..scale_text import ScaleTexts
from .accuracy_reached import how_many, with_reached
from .confounded_trends import ConfoundedTrend

MASK, REACHED = "interventions.mask", "outcome"
TRACE, LARGEST = "curvature.trace", "curvature.lambda_max"
ACCURACIES = ("train_accuracy", "test_accuracy")
MEASURES = (TRACE, LARGEST, "relative.kappa")
WORDS = {0.0: "unmasked", 0.7: "70 % masked"}
MASKED = ConfoundedTrend(MASK, "masking", "train_accuracy", "the training accuracy")
COMPARED = (*ACCURACIES, TRACE, LARGEST)
PAPER = {  # the two runs of each that the paper prints
    "unmasked": ((0.8998, 0.6953, 3421.8131, 132.2791), (0.9202, 0.6978, 3508.5457, 131.1579)),
    "70 % masked": ((0.8986, 0.6550, 2863.1796, 155.6508), (0.9095, 0.6542, 2878.2399, 149.2074)),
}


def analyse(rows: Sequence[Row]) -> Outcome:
    """Compare masked with unmasked networks of the same seed."""
    groups = {
        name_of_group: [r for r in rows if r[MASK] == mask] for mask, name_of_group in WORDS.items()
    }
    plain, masked = groups.values()
    worse, flatter, largest = (
        difference(masked, plain, name) for name in ("test_accuracy", TRACE, LARGEST)
    )
    findings = [
        below("test accuracy is lower with masked maps", worse),
        below("the trace is smaller with masked maps", flatter),
        unmoved("the largest eigenvalue does not change", largest),
    ]
    fitted = difference(masked, plain, "train_accuracy")
    return Outcome(
        table=with_reached(
            group_table("version", groups, (*ACCURACIES, "epoch", *MEASURES)), groups
        ),
        figure=group_points(
            groups, TRACE, "test_accuracy", "trace of the Hessian", "test accuracy"
        ),
        beside={
            f"{name}, {name_of_group}": mean(column(group, name))
            for name_of_group, group in groups.items()
            for name in COMPARED
        },
        findings=findings,
        agrees=verdict(findings),
        conclusion=(
            f"With 70 % of the feature maps dead the test accuracy {_changes(worse)}, the trace "
            f"changes by {flatter} and the largest eigenvalue by {largest} (paired by seed, "
            f"n = {worse.n}). The target training accuracy was reached or passed by "
            f"{how_many(rows)} of {len(rows)} networks; that of masked ones differs by {fitted}."
        ),
        more=[
            ratios(groups, next(iter(groups)), (TRACE, LARGEST)),
            MASKED.section(
                rows,
                ("test_accuracy", TRACE, LARGEST),
                "Training ends with the epoch in which the target training accuracy is reached, "
                f"and may pass it; with masked maps its end differs by {fitted} (paired by seed).",
            ),
        ],
    )


def _changes(worse: IntervalEstimate) -> str:
    """The change of the test accuracy; if it contradicts the claim, that comes first."""
    if worse.low > 0:
        return f"is higher, the reverse of the claim: it changes by {worse}"
    return f"changes by {worse}"


EXPERIMENT = Experiment(
    name="001-table-5",
    title="masked feature maps of ResNet-18",
    source="Table 5",
    claim=(
        "A ResNet-18 with 70 % of its feature maps set to zero throughout training generalizes "
        "worse at the same training accuracy although its Hessian trace is smaller; its largest "
        "eigenvalue hardly differs."
    ),
    analyse=analyse,
    trained=Trained(
        (Limit("outcome", reached=("train_accuracy",)),),
        "The claim compares networks of the same training accuracy.",
        by=MASK,
    ),
    columns=(MASK, "seed", REACHED, "epoch", "train_loss", *ACCURACIES, *MEASURES),
    rule=(
        "test accuracy and trace of the masked networks are lower, each with the whole 95 % "
        "interval of the difference paired by seed below 0, and the interval for the largest "
        "eigenvalue is around 0. Partly, if test accuracy or trace is lower and not all three are "
        "true: an interval around 0 shows too little on its own."
    ),
    set_up=(
        "ResNet-18, SGD with learning rate 0.01 and momentum 0.9, until a training accuracy, the "
        "same for all, is reached or passed. Which maps are dead is drawn once for each seed and "
        "convolution. That whole maps are dead is our reading: the paper masks a fixed share of "
        "the feature maps and does not say in which unit, but counts dead outputs position by "
        "position. A mask of single positions would leave every map alive and may give other "
        "results."
    ),
    scaled_down=ScaleTexts(
        "001-table-5",
        {
            "": (
                "{data.samples} training images of CIFAR-10 instead of 50,000 in batches of "
                "{training.batch_size}, a width of {model.width} instead of 64, measured on "
                "{measure_options.samples} of the training images; {seeds} seeds instead of 2."
            ),
            "quick": (
                "{data.samples} images, at most {training.epochs} epochs, {seeds} seeds: a trial."
            ),
            "h200": (
                "{data.samples} training images instead of 50,000, measured on "
                "{measure_options.samples} of them; {seeds} seeds instead of 2."
            ),
            "h200-after-norm": (
                "{data.samples} training images instead of 50,000, measured on "
                "{measure_options.samples} of them; {seeds} seeds instead of 2. Feature maps are "
                "masked "
                "behind the batch norm, so that a masked one is 0."
            ),
            "paper": (
                "Measured on {measure_options.samples} of the training images; {seeds} seeds "
                "instead of 2."
            ),
        },
    ),
    measures=MEASURES,
    paper_values={
        f"{name}, {words}": (first + second) / 2
        for words, runs in PAPER.items()
        for name, first, second in zip(COMPARED, *runs, strict=True)
    },
    paper_runs=4,
)
