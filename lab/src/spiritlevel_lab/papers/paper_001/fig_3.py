"""Paper 001, Fig. 3: augmented training ends flatter, with other norms and activity."""

from __future__ import annotations

from collections.abc import Sequence

from ...claims.contrasts import (
    difference,
    group_points,
    group_table,
    groups_of,
)
from ...claims.factors import ratios
from ...claims.findings import above, below, verdict
from ...claims.numbers import mean
from ...claims.rows import column
from ...claims.trained import Limit, Trained
from ..experiment import Experiment, Outcome, Row
from ..scale_text import ScaleTexts
from .accuracy_reached import with_reached

VARIANT = "variant"
PLAIN, AUGMENTED = "plain", "augmented"
LARGEST, FREQUENCY = "curvature.lambda_max", "activity.frequency"
WEIGHTS, ACTIVATIONS = "norms.weight", "activity.activation_norm"
ACCURACIES = ("train_accuracy", "test_accuracy")
COMPARED = {  # numbers that the paper gives for both networks
    "training accuracy": "train_accuracy",
    "test accuracy": "test_accuracy",
    "epoch": "epoch",
}
MEASURES = (LARGEST, "curvature.trace", "relative.kappa", FREQUENCY, ACTIVATIONS, WEIGHTS)


def analyse(rows: Sequence[Row]) -> Outcome:
    """Compare augmented with plain training at one training accuracy, paired by seed."""
    groups = groups_of(rows, VARIANT, (PLAIN, AUGMENTED))
    names = ("test_accuracy", LARGEST, ACTIVATIONS, WEIGHTS, FREQUENCY)
    plain, augmented = groups.get(PLAIN, []), groups.get(AUGMENTED, [])
    changes = {name: difference(augmented, plain, name) for name in names}
    findings = [
        above("test accuracy is higher with augmentation", changes["test_accuracy"]),
        below("the largest eigenvalue is smaller", changes[LARGEST]),
        above("activations are larger", changes[ACTIVATIONS]),
        above("weights are larger", changes[WEIGHTS]),
        below("units fire less often", changes[FREQUENCY]),
    ]
    num_held = sum(finding.result == "held" for finding in findings)
    said = ", ".join(f"{name} by {change}" for name, change in changes.items())
    return Outcome(
        table=with_reached(
            group_table("training", groups, (*ACCURACIES, "epoch", *MEASURES)), groups
        ),
        figure=group_points(
            groups, LARGEST, "test_accuracy", "largest eigenvalue of the Hessian", "test accuracy"
        ),
        beside={
            f"{title}, {name}": mean(column(group, key))
            for name, group in ((PLAIN, plain), (AUGMENTED, augmented))
            for title, key in COMPARED.items()
        },
        findings=findings,
        agrees=verdict(findings),
        more=[ratios(groups, PLAIN, (LARGEST, "curvature.trace"))],
        conclusion=(
            f"At the same training accuracy or beyond, cropped and mirrored images change {said} "
            f"(paired by seed, n = {changes[LARGEST].n}): {num_held} of the 5 changes are as "
            "claimed."
        ),
    )


EXPERIMENT = Experiment(
    name="001-fig-3",
    title="augmentation moves the norms along with the sharpness",
    source="Fig. 3",
    claim=(
        "Trained on randomly cropped and mirrored images to the same training accuracy, a network "
        "generalizes better and its largest Hessian eigenvalue is smaller, but its weights and "
        "activations are larger and its units fire less often, so the eigenvalues cannot be "
        "compared."
    ),
    analyse=analyse,
    trained=Trained(
        (Limit("outcome", reached=("train_accuracy",)),),
        "The claim compares networks of the same training accuracy.",
        by=VARIANT,
    ),
    columns=(VARIANT, "seed", "outcome", "epoch", "train_loss", *ACCURACIES, *MEASURES),
    rule=(
        "all five changes have the sign of the claim with the whole 95 % interval of the "
        "difference paired by seed: test accuracy, norm of the activations and norm of the weights "
        "above 0, largest eigenvalue and activation frequency below 0. Partly, if some do."
    ),
    set_up=(
        "VGG-small, SGD with learning rate 0.01 and momentum 0.9, until a training accuracy on "
        "unchanged images, the same for both groups, is reached or passed. Random crops after "
        "padding by 4 pixels, and mirror images. The figure follows the augmented network over 80 "
        "epochs and marks the plain one at one of them; here both are measured once, at the end "
        "of their training."
    ),
    scaled_down=ScaleTexts(
        "001-fig-3",
        {
            "": (
                "{data.samples} training images of CIFAR-10 instead of 50,000 in batches of "
                "{training.batch_size}, a width of {model.width} instead of 64, trained to "
                "{stop.train_accuracy:%} instead of about 90 % in at most {training.epochs} "
                "epochs, measured on {measure_options.samples} of the training images; {seeds} "
                "seeds instead of one."
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
        "training accuracy, plain": 0.9184,
        "test accuracy, plain": 0.72,
        "epoch, plain": 11,
        "training accuracy, augmented": 0.9056,
        "test accuracy, augmented": 0.8307,
        "epoch, augmented": 80,
    },
    paper_runs=2,
)
