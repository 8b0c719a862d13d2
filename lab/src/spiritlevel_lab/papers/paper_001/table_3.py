"""Paper 001, Table 3: a patch that tells the class makes a network flatter, and blind."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...claims import post_hoc as afterwards
from ...claims.contrasts import (
    difference,
    group_points,
    group_table,
    groups_of,
    lower_in,
)
from ...claims.factors import ratios
from ...claims.findings import above, below, verdict
from ...claims.numbers import mean
from ...claims.rows import column
from ...claims.trained import Limit, Trained
from ..experiment import Experiment, Outcome, Row
from ..scale_text import ScaleTexts
from .accuracy_reached import how_many

LEAKAGE = "interventions.leakage"
LEAK, CONTROL = "class", "control"
TRACE, GINI = "curvature.trace", "softmax.gini"
JACOBIAN, OUTSIDE = "sensitivity.jacobian", "sensitivity.jacobian_outside"
ACCURACIES = ("train_accuracy", "test_accuracy")
MEASURES = (TRACE, JACOBIAN, OUTSIDE, GINI, "curvature.ggn_trace", "head.kappa")
PATCH, IMAGE = 8 * 8, 32 * 32  # pixels
EVENNESS = "Jacobian norm without the patch, 1 if even"
PAPER = {
    LEAK: (15.22927, 69.61466, 20.98831, 0.00046),
    CONTROL: (52.55664, 22.88224, 23.17986, 0.00154),
}
WORDS = {LEAK: "leak", CONTROL: "control"}


def analyse(rows: Sequence[Row]) -> Outcome:
    """Compare the group with the leak with its control, paired by seed."""
    rows = [{**row, EVENNESS: _evenness(row)} for row in rows]
    groups = groups_of(rows, LEAKAGE, (LEAK, CONTROL))
    names = (TRACE, GINI, JACOBIAN, "test_accuracy")
    leak, control = groups.get(LEAK, []), groups.get(CONTROL, [])
    changes = {name: difference(leak, control, name) for name in names}
    findings = [
        below("the trace is smaller with a patch that tells the class", changes[TRACE]),
        below("1 − ‖p‖² is smaller, outputs are closer to one-hot", changes[GINI]),
        above("the Jacobian norm is larger", changes[JACOBIAN]),
    ]
    without, without_in_control = (mean(column(group, EVENNESS)) for group in (leak, control))
    added = [
        below("without the patch the Jacobian norm is smaller, with the leak", without, 1.0),
        below("this ratio is smaller than in the control", difference(leak, control, EVENNESS)),
    ]
    said = ", ".join(
        f"{name} by {change} ({lower_in(leak, control, name)})" for name, change in changes.items()
    )
    return Outcome(
        table=group_table("patch", groups, (*ACCURACIES, "epoch", *MEASURES, EVENNESS)),
        figure=group_points(
            groups, TRACE, "test_accuracy", "trace of the Hessian", "test accuracy"
        ),
        beside={
            f"{name}, {WORDS[group]}": mean(column(groups.get(group, []), name))
            for group in PAPER
            for name in MEASURES[:4]
        },
        findings=[*findings, *added],
        agrees=afterwards.with_added(verdict(findings), added),
        more=[ratios(groups, CONTROL, (TRACE, GINI, JACOBIAN))],
        conclusion=(
            f"Against the control of the same seed, a patch that tells the class changes {said}; "
            f"{how_many(rows)} of {len(rows)} networks reached the target training accuracy. "
            f"Without the pixels of the patch the Jacobian norm is {without} of that of as "
            f"many pixels of the whole image, and {without_in_control} of it in the control."
        ),
    )


def _evenness(row: Row) -> float | None:
    """1 if the outputs depend on all pixels alike, less if they depend more on the patch."""
    whole, outside = row.get(JACOBIAN), row.get(OUTSIDE)
    if not whole or outside is None:
        return None
    return float(outside / (whole * math.sqrt(PATCH / IMAGE)))


EXPERIMENT = Experiment(
    name="001-table-3",
    title="a patch that tells the class",
    source="Table 3",
    claim=(
        "If a patch in a corner tells the class, a network with fixed norms reaches 100 % "
        "training accuracy with a smaller Hessian trace and outputs closer to one-hot than with a "
        "patch that tells nothing, while its outputs are more sensitive to the inputs: they have "
        "a larger Jacobian norm. This comes from the patch: without its pixels the norm is clearly "
        "smaller, while in the control it hardly changes."
    ),
    analyse=analyse,
    trained=Trained(
        (Limit("outcome", reached=("train_accuracy",)),),
        "The claim compares networks of the same training accuracy.",
        by=LEAKAGE,
    ),
    columns=(LEAKAGE, "seed", "outcome", "epoch", "train_loss", *ACCURACIES, *MEASURES),
    rule=(
        "Hessian trace and 1 − ‖p‖² are lower, and the Jacobian norm is higher, than in the "
        "control, each with the whole 95 % interval of the difference paired by seed. Partly, if "
        "some are. Two more parts are judged: without the pixels of the patch the Jacobian norm "
        "with the leak is lower than for as many pixels of the whole image, with the interval of "
        "their ratio below 1, and that ratio is lower than in the control, with the interval of "
        f"the difference paired by seed below 0. {afterwards.HOW}"
    ),
    set_up=(
        "VGG-small with every sample's activations normalized in front of each ReLU and weights of "
        "mean 0 and variance 2/n_in after each step; SGD with learning rate 0.01 and momentum 0.9, "
        "until the training accuracy is 100 % for the first time. An 8×8 digit stands in the "
        "bottom left corner of each training image: that of its class, or in the control one of "
        "any class, drawn anew for each batch. The digits are those of the package, not MNIST's. "
        "Accuracy and curvature are those on the training images with their patches, test accuracy "
        "on images without. The Jacobian is that of the outputs in front of the softmax, the root "
        "of its mean square over images; the paper does not say which outputs it uses. The "
        "norm without the patch is rescaled to 8×8 pixels by the paper's formula. The paper's "
        "norms of all pixels must be rescaled in the same way, though it does not say so: "
        "otherwise the norm without the patch would be larger than that with it. Here they are "
        "not rescaled, which changes no comparison of the groups; the ratio of the two uses 8×8 "
        "pixels for both."
    ),
    scaled_down=ScaleTexts(
        "001-table-3",
        {
            "": (
                "{data.samples} training images of CIFAR-10 instead of 50,000 in batches of "
                "{training.batch_size}, a width of {model.width} instead of 64, measured on "
                "{measure_options.samples} of the training images with at most "
                "{measure_options.max_passes} probes for the part of the trace that is not "
                "Gauss-Newton; {seeds} seeds instead of one."
            ),
            "quick": (
                "{data.samples} images, at most {training.epochs} epochs, {seeds} seeds: a trial."
            ),
            "h200": (
                "{data.samples} training images instead of 50,000, measured on "
                "{measure_options.samples} of them; {seeds} seeds instead of one."
            ),
            "paper": (
                "Measured on {measure_options.samples} of the training images; {seeds} seeds "
                "instead of one."
            ),
        },
    ),
    measures=MEASURES,
    paper_values={
        f"{name}, {WORDS[group]}": value
        for group, values in PAPER.items()
        for name, value in zip(MEASURES[:4], values, strict=True)
    },
    paper_runs=2,
)
