"""Paper 001, Table 3: a patch that tells the class makes a network flatter, and blind."""

from __future__ import annotations

from collections.abc import Sequence

from .contrasts import difference, group_points, group_table, groups_of, lower_in
from .experiment import Experiment, Outcome, Row
from .findings import above, below, verdict
from .numbers import mean
from .rows import column

LEAKAGE = "interventions.leakage"
LEAK, CONTROL = "class", "control"
TRACE, GINI = "curvature.trace", "softmax.gini"
JACOBIAN, OUTSIDE = "sensitivity.jacobian", "sensitivity.jacobian_outside"
ACCURACIES = ("train_accuracy", "test_accuracy")
MEASURES = (TRACE, JACOBIAN, OUTSIDE, GINI, "curvature.ggn_trace", "head.kappa")
PAPER = {
    LEAK: (15.22927, 69.61466, 20.98831, 0.00046),
    CONTROL: (52.55664, 22.88224, 23.17986, 0.00154),
}
WORDS = {LEAK: "leak", CONTROL: "control"}


def analyse(rows: Sequence[Row]) -> Outcome:
    """The group with the leak against its control, paired by seed."""
    groups = groups_of(rows, LEAKAGE, (LEAK, CONTROL))
    names = (TRACE, GINI, JACOBIAN, "test_accuracy")
    found = {name: difference(groups[LEAK], groups[CONTROL], name) for name in names}
    findings = [
        below("the trace is smaller with a patch that tells the class", found[TRACE]),
        below("1 − ‖p‖² is smaller, outputs are closer to one-hot", found[GINI]),
        above("the Jacobian norm is larger", found[JACOBIAN]),
    ]
    fitted = sum(row["outcome"] == "train_accuracy" for row in rows)
    said = ", ".join(
        f"{name} by {change} ({lower_in(groups[LEAK], groups[CONTROL], name)})"
        for name, change in found.items()
    )
    return Outcome(
        table=group_table("patch", groups, (*ACCURACIES, "epoch", *MEASURES)),
        figure=group_points(
            groups, TRACE, "test_accuracy", "trace of the Hessian", "test accuracy"
        ),
        beside={
            f"{name}, {WORDS[group]}": mean(column(groups[group], name))
            for group in PAPER
            for name in MEASURES[:4]
        },
        findings=findings,
        agrees=verdict(findings),
        conclusion=(
            f"Against the control of the same seed, a patch that tells the class changes {said}; "
            f"{fitted} of {len(rows)} networks reached the training accuracy asked for."
        ),
    )


EXPERIMENT = Experiment(
    name="001-table-3",
    title="a patch that tells the class",
    source="Table 3",
    claim=(
        "Where a patch in a corner tells the class, a network of fixed norms reaches 100 % "
        "training accuracy with a smaller Hessian trace and outputs closer to one-hot than with a "
        "patch that tells nothing, while its outputs are more sensitive to the inputs: they have "
        "a larger Jacobian norm."
    ),
    analyse=analyse,
    columns=(LEAKAGE, "seed", "outcome", "epoch", "train_loss", *ACCURACIES, *MEASURES),
    rule=(
        "Hessian trace and 1 − ‖p‖² are lower, and the Jacobian norm is higher, than in the "
        "control, each with the whole 95 % interval of the difference paired by seed. Partly, if "
        "some are."
    ),
    set_up=(
        "VGG-small with every sample's activations normalized in front of each ReLU and weights of "
        "mean 0 and variance 2/n_in after each step; SGD with learning rate 0.01 and momentum 0.9, "
        "until the training accuracy is 100 % for the first time. An 8×8 digit stands in the "
        "bottom left corner of each training image: that of its class, or in the control one of "
        "any class, drawn anew for each batch. The digits are those of the package, not MNIST's. "
        "Accuracy and curvature are those on the training images with their patches, test accuracy "
        "on images without."
    ),
    scaled_down={
        "": (
            "300 training images of CIFAR-10 instead of 50,000 in batches of 16, a width of 8 "
            "instead of 64, measured on 100 of the training images with at most 20 probes for the "
            "part of the trace that is not Gauss-Newton; 10 seeds instead of one."
        ),
        "quick": "100 images, at most 8 epochs, 2 seeds: a trial.",
        "h200": (
            "20,000 training images instead of 50,000, measured on 1,000 of them; 5 seeds instead "
            "of one."
        ),
        "paper": "Measured on 5,000 of the training images; 3 seeds instead of one.",
    },
    measures=MEASURES,
    paper_values={
        f"{name}, {WORDS[group]}": value
        for group, values in PAPER.items()
        for name, value in zip(MEASURES[:4], values, strict=True)
    },
)
