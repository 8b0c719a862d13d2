"""Paper 004 at equal time: is its penalty worth its cost beside others, SAM and ASAM?"""

from __future__ import annotations

from collections.abc import Sequence

from ...claims.contrasts import difference, group_points, groups_of
from ...claims.factors import factor_by_seed
from ...claims.findings import above, below, verdict
from ...claims.numbers import IntervalEstimate, mean, plain
from ...claims.rows import column
from ..experiment import (
    Cell,
    Experiment,
    Outcome,
    Row,
    Table,
)
from ..scale_text import ScaleTexts
from .table import accurate
from .tasks_equal_time import EPOCHS, SECONDS

PLAIN, PENALTY = "plain", "Tr(H²)/B"
METHODS = (PLAIN, PENALTY, "head kappa", "kappa of the first layer", "SAM", "ASAM")
ACCURACY, HEAD, KAPPA = "test_accuracy", "head.kappa", "relative.kappa"
LOSS = "train_loss"
SHOWN = (EPOCHS, SECONDS, LOSS, ACCURACY, "gap", HEAD, KAPPA, "curvature.trace")
KEPT = 0.01  # accuracy that may be lost: the paper's λ gains 0.007 when time does not count


def analyse(rows: Sequence[Row]) -> Outcome:
    """Each method against plain training of the same seconds, seed by seed."""
    groups = groups_of(rows, "variant", METHODS)
    plain_rows = groups.get(PLAIN, [])
    changes = {name: difference(group, plain_rows, ACCURACY) for name, group in groups.items()}
    factors = {name: factor_by_seed(plain_rows, group, HEAD) for name, group in groups.items()}
    table: list[list[Cell]] = [
        [
            name,
            len(group),
            *(mean(column(group, each)) for each in SHOWN),
            None if name == PLAIN else changes[name],
            None if name == PLAIN else factors[name],
        ]
        for name, group in groups.items()
    ]
    findings = [
        above(
            f"{PENALTY} at λ = 0.01 keeps the accuracy within {KEPT:g} (accuracy, less plain's)",
            changes.get(PENALTY, mean([])),
            -KEPT,
        ),
        below(
            f"{PENALTY} ends flatter (relative flatness of the head over plain's)",
            factors.get(PENALTY, mean([])),
            1.0,
        ),
    ]
    return Outcome(
        table=Table(
            ("training", "n", *SHOWN, "accuracy, less plain's", f"{HEAD} over plain's"), table
        ),
        figure=group_points(
            groups, HEAD, ACCURACY, "relative flatness of the head", "test accuracy"
        ),
        findings=findings,
        agrees=verdict(findings),
        conclusion=_conclusion(groups, changes, factors),
        why=_why(groups),
    )


def _why(groups: dict[str, list[Row]]) -> str:
    """A network that is fitted less is flat for that reason alone."""
    losses = ", ".join(f"{mean(column(g, LOSS))} ({name})" for name, g in groups.items())
    return (
        f"The training loss at the end is {losses}. Where it is larger than with plain training, "
        "the network is fitted less, because it had fewer epochs or because the method itself "
        "keeps the loss up, and a part of its flatness comes from that alone."
    )


def _conclusion(
    groups: dict[str, list[Row]],
    changes: dict[str, IntervalEstimate],
    factors: dict[str, IntervalEstimate],
) -> str:
    said = "; ".join(
        f"{name} comes to {plain(mean(column(group, EPOCHS)).value, 3)} epochs, changes the test "
        f"accuracy by {changes[name]} and multiplies flatness by {factors[name]}"
        for name, group in groups.items()
        if name != PLAIN
    )
    epochs = plain(mean(column(groups.get(PLAIN, []), EPOCHS)).value, 3)
    return f"In the time in which plain training comes to {epochs} epochs: {said}."


EXPERIMENT = Experiment(
    name="004-time",
    title="penalties, SAM and ASAM at equal time",
    source="its section on efficiency",
    claim=(
        "A moderate penalty on Tr(H²)/B balances fit, generalization and cost best. (The paper "
        "compares at equal epochs, where the penalty takes 36 to 40 times as long.)"
    ),
    analyse=analyse,
    trained=accurate(
        lambda row: row["variant"] == PLAIN, "the networks without penalty and method"
    ),
    columns=("outcome", "variant", "seed", *SHOWN, "softmax.gini"),
    rule=(
        "trained for the same seconds as plain networks, those with the penalty at λ = 0.01 lose "
        f"at most {KEPT:g} of test accuracy and have a smaller relative flatness of the head, each "
        "with its whole 95 % interval, seed by seed. Partly, if one is so. The other methods are "
        "shown, not judged: the paper does not have them."
    ),
    set_up=(
        "Plain SGD with momentum 0.9, the paper's penalty at λ = 0.01, penalties on relative "
        "flatness of the head and of the first layer with a weight of 0.01, SAM (radius 0.05) and "
        "ASAM (0.5), each for the same seconds of training; evaluation and measures do not count. "
        "Gradients are clipped at a norm of 1, as in the paper's table. "
        "Weights and radii are usual ones and were not tuned. How many steps fit depends on the "
        "machine, so these runs do not repeat to the last digit; run them one at a time."
    ),
    scaled_down=ScaleTexts(
        "004-time",
        {
            "": (
                "Handwritten digits of 8×8 pixels ({data.samples} images) instead of CIFAR-100, "
                "{task.seconds} seconds for each of {runs} networks."
            ),
            "quick": "The same with {task.seconds} seconds and {seeds} seeds each: a trial.",
            "h200": (
                "{data.samples} images of CIFAR-100 instead of 50,000, cropped and flipped, a "
                "width of {model.hidden}, a rate that falls from {training.lr} to 0 over the time, "
                "{task.seconds} seconds for each of {runs} networks."
            ),
            "paper": (
                "All {data.samples} training images, {task.seconds} seconds for each network, as "
                "long as the paper's plain training; {seeds} seeds."
            ),
        },
    ),
    measures=(HEAD, KAPPA, "curvature.trace"),
    takes_times=True,
)
