"""Paper 001, appendix A.6: random displacements of the weights instead of SAM's."""

from __future__ import annotations

from collections.abc import Sequence

from ...claims.contrasts import (
    Groups,
    difference,
    group_points,
    group_table,
    groups_of,
)
from ...claims.factors import ratios
from ...claims.findings import below, verdict
from ...claims.numbers import IntervalEstimate
from ...claims.trained import Limit, Trained
from ..experiment import Experiment, Outcome, Row
from ..scale_text import ScaleTexts

VARIANT = "variant"
PLAIN, SAM, NOISE, WIDE = VARIANTS = ("plain", "SAM", "noise", "noise, wide")
TRACE = "curvature.trace"
ACCURACIES = ("train_accuracy", "test_accuracy")
MEASURES = (TRACE, "curvature.lambda_max", "relative.kappa", "softmax.gini")


def analyse(rows: Sequence[Row]) -> Outcome:
    """Compare each method with plain training of the same seed."""
    groups = groups_of(rows, VARIANT, VARIANTS)
    flatter = {name: _change(groups, name, TRACE) for name in VARIANTS[1:]}
    better = {name: _change(groups, name, "test_accuracy") for name in VARIANTS[1:]}
    said = "; ".join(
        f"{name}: trace {flatter[name]}, test accuracy {better[name]} "
        f"({_pairs(groups, name, flatter[name].n)})"
        for name in VARIANTS[1:]
    )
    findings = [
        below("random displacements of SAM's radius lower the trace", flatter[NOISE]),
        below("those of 20 times that radius lower the trace", flatter[WIDE]),
    ]
    return Outcome(
        table=group_table("training", groups, (*ACCURACIES, "train_loss", *MEASURES)),
        figure=group_points(
            groups, TRACE, "test_accuracy", "trace of the Hessian", "test accuracy"
        ),
        findings=findings,
        more=[ratios(groups, PLAIN, (TRACE, "curvature.lambda_max"))],
        agrees="yes" if findings[0].result == "held" else verdict(findings),
        conclusion=f"Against plain training of the same seed: {said}.",
    )


def _change(groups: Groups, name: str, measure: str) -> IntervalEstimate:
    return difference(groups.get(name, ()), groups.get(PLAIN, ()), measure)


def _pairs(groups: Groups, name: str, n: int) -> str:
    """How many seeds both have, and which ones are missing."""
    seeds = {row["seed"] for group in groups.values() for row in group}
    gone = []
    for group in (PLAIN, name):
        missing = sorted(seeds - {row["seed"] for row in groups.get(group, ())})
        if missing:
            gone.append(f"no run of {group} with seed {', '.join(map(str, missing))}")
    return "; ".join([f"n = {n}", *gone])


EXPERIMENT = Experiment(
    name="001-a6",
    title="random displacements instead of SAM's",
    source="appendix A.6",
    claim=(
        "Random displacements in a ball around the weights, instead of the steepest direction that "
        "SAM takes, should also lead to flatter minima; the paper argues so and gives no numbers."
    ),
    analyse=analyse,
    trained=Trained(
        (Limit("train_accuracy", at_least=0.9),),
        "The claim is about minima; the paper compares networks from a training accuracy of 0.9 "
        "on.",
        by="variant",
    ),
    columns=(VARIANT, "seed", "outcome", "train_loss", *ACCURACIES, *MEASURES),
    rule=(
        "random displacements of SAM's own radius lower the Hessian trace compared with plain "
        "training, with the whole 95 % interval of the difference paired by seed below 0. Partly, "
        "if only those of a radius 20 times as large do."
    ),
    set_up=(
        "VGG-small, SGD with learning rate 0.01 and momentum 0.9 for a fixed number of epochs: "
        "plain, SAM with radius 0.05, and the mean gradient over 2 displacements drawn from the "
        "ball of radius 0.05, or of 1 (wide)."
    ),
    scaled_down=ScaleTexts(
        "001-a6",
        {
            "": (
                "MNIST, {data.samples} training images in batches of {training.batch_size}, a "
                "width of {model.width}, {training.epochs} epochs, measured on "
                "{measure_options.samples} of the training images; {seeds} seeds."
            ),
            "quick": ("{data.samples} images, {training.epochs} epochs, {seeds} seeds: a trial."),
            "h200": (
                "CIFAR-10, {data.samples} training images, {training.epochs} epochs, measured "
                "on {measure_options.samples} of them; {seeds} seeds."
            ),
            "paper": (
                "CIFAR-10, {training.epochs} epochs, measured on {measure_options.samples} of "
                "the training images; {seeds} seeds."
            ),
        },
    ),
    measures=MEASURES,
)
