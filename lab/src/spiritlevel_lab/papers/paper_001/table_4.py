"""Paper 001, Table 4: one epoch of noise at the end makes a network flatter, and no better."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ...claims.findings import (
    Agreement,
    Finding,
    Result,
    below,
    missed,
)
from ...claims.numbers import IntervalEstimate, mean
from ...claims.rows import column
from ...claims.trained import FIT, Limit, Trained
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
from .tasks_noise_finetuning import (
    EPOCHS,
    FITTED,
    STAGES,
    STANDARD,
    STRONG,
    TEST,
    TRAIN,
    WEAK,
)

TRACE = "curvature.trace"
MEASURES = (TRACE, "curvature.lambda_max", "relative.kappa", "softmax.gini", "norms.weight")
SHOWN = (TRAIN, TEST, EPOCHS, *MEASURES)
WORDS = {
    STANDARD: "standard",
    FITTED: "fitted to 99 %",
    WEAK: "noise fine-tuning, weak noise",
    STRONG: "noise fine-tuning, strong noise",
}
SAME = 0.02  # a smaller difference of test accuracies counts as none; the paper's is 0.007


def analyse(rows: Sequence[Row]) -> Outcome:
    """Compare each network after the epoch of noise with itself at the standard accuracy."""
    table: list[list[Cell]] = [
        [title, len(rows), *(mean(column(rows, f"{name}/{stage}")) for name in SHOWN)]
        for stage, title in WORDS.items()
    ]
    flatter = {stage: _against_standard(rows, TRACE, stage) for stage in (WEAK, STRONG)}
    better = {stage: _against_standard(rows, TEST, stage) for stage in (WEAK, STRONG)}
    lower = {
        stage: below(f"the trace is smaller after {stage} noise", change)
        for stage, change in flatter.items()
    }
    same = {
        stage: _same(f"test accuracy is the same within {SAME:g} after {stage} noise", change)
        for stage, change in better.items()
    }
    return Outcome(
        table=Table(("network", "n", *SHOWN), table),
        figure=Figure(
            "trace of the Hessian",
            "test accuracy",
            [
                Series(title, column(rows, f"{TRACE}/{stage}"), column(rows, f"{TEST}/{stage}"))
                for stage, title in WORDS.items()
            ],
            log_x=all(value > 0 for s in STAGES for value in column(rows, f"{TRACE}/{s}")),
            points=True,
        ),
        beside={
            f"{title}, {group}": mean(column(rows, f"{name}/{stage}"))
            for group, stage in (("standard", STANDARD), ("noise fine-tuning", STRONG))
            for title, name in _COMPARED.items()
        },
        findings=[part[stage] for stage in (WEAK, STRONG) for part in (lower, same)],
        agrees=_agreement(lower, same),
        conclusion=" ".join(
            f"After one epoch of {stage} noise the trace differs by {flatter[stage]} and the test "
            f"accuracy by {better[stage]} from the standard network of the same run "
            f"(n = {better[stage].n})."
            for stage in (WEAK, STRONG)
        )
        + f" {_fitted(rows)}",
    )


_COMPARED = {"training accuracy": TRAIN, "test accuracy": TEST, "trace": TRACE}


def _against_standard(rows: Sequence[Row], name: str, stage: str) -> IntervalEstimate:
    return mean(row[f"{name}/{stage}"] - row[f"{name}/{STANDARD}"] for row in rows)


def _same(part: str, change: IntervalEstimate) -> Finding:
    """Held where the whole interval is close to 0, not refuted where the mean alone is."""
    if math.isnan(change.low):
        result: Result = "undecided"
    elif max(abs(change.low), abs(change.high)) <= SAME:
        result = "held"
    elif abs(change.value) <= SAME:
        result = "not refuted"
    else:
        result = "not held" if change.low > SAME or change.high < -SAME else "undecided"
    return Finding(part, result, change)


def _fitted(rows: Sequence[Row]) -> str:
    """Whether these networks have the same training accuracy, as the claim requires."""
    accuracies = {
        stage: mean(column(rows, f"{TRAIN}/{stage}")) for stage in (STANDARD, WEAK, STRONG)
    }
    said = (
        f"The training accuracy is {accuracies[STANDARD]} in the standard networks, "
        f"{accuracies[WEAK]} after weak and {accuracies[STRONG]} after strong noise"
    )
    apart = [
        stage for stage in (WEAK, STRONG) if abs(_against_standard(rows, TRAIN, stage).value) > SAME
    ]
    if not apart:
        return f"{said}, the same within {SAME:g}."
    return (
        f"{said}: after {' and '.join(apart)} noise it is not the same (within {SAME:g}), as the "
        "claim would require."
    )


def _agreement(lower: Mapping[str, Finding], same: Mapping[str, Finding]) -> Agreement:
    """The better of both strengths; an unchanged accuracy counts only with a smaller trace."""
    flatter = [stage for stage, finding in lower.items() if finding.result == "held"]
    if flatter:
        accuracy_stays = any(same[stage].result in ("held", "not refuted") for stage in flatter)
        return "yes" if accuracy_stays else "partly"
    refuted = [missed([lower[stage], same[stage]]) == "no" for stage in lower]
    return "no" if all(refuted) else "undecided"  # one of the strengths is enough


EXPERIMENT = Experiment(
    name="001-table-4",
    title="one epoch of noise at the end",
    source="Table 4",
    claim=(
        "A network that was fitted to 99 % and then trained for one epoch on noisy inputs has a "
        "much smaller Hessian trace than a standard one of the same training accuracy, and the "
        "same test accuracy."
    ),
    analyse=analyse,
    trained=Trained(
        (
            Limit(f"{TRAIN}/standard", at_least=0.9, name="training accuracy (standard)"),
            Limit(f"{TRAIN}/fitted", at_least=FIT, name="training accuracy (fitted)"),
        ),
        "The paper names both; its own standard network just misses the first (0.892).",
    ),
    columns=("seed", *(f"{name}/{stage}" for stage in STAGES for name in SHOWN)),
    rule=(
        "for one of the two strengths of noise the trace is lower than in the standard network of "
        "the same run, with the whole 95 % interval of the difference below 0, and the mean test "
        f"accuracy differs by at most {SAME:g}. Partly, if the trace is lower but the test "
        "accuracy is not the same."
    ),
    set_up=(
        "ResNet-18, SGD with learning rate 0.01 and momentum 0.9. One run gives all networks: the "
        "standard one when the training accuracy first reaches 90 %, the fitted one at 99 %, and "
        "from that one epoch more with noise on every batch. Momentum starts at 0 at each stage. "
        "The paper's variance of 0.5 is taken in two ways, as it does not say how its inputs are "
        "scaled: strong noise has it where pixels go from 0 to 1, weak noise where they have a "
        "variance of 1 (a standard deviation of 0.18). Accuracy and curvature are those without "
        "noise."
    ),
    scaled_down=ScaleTexts(
        "001-table-4",
        {
            "": (
                "{data.samples} training images of CIFAR-10 instead of 50,000 of CIFAR-100 in "
                "batches of {training.batch_size}, a width of {model.width} instead of 64, "
                "measured on {measure_options.samples} of the training images; {seeds} seeds "
                "instead of one."
            ),
            "quick": (
                "{data.samples} images, at most {training.epochs} epochs per stage, {seeds} "
                "seed: a trial."
            ),
            "h200": (
                "{data.samples} training images of CIFAR-10 instead of 50,000 of CIFAR-100, "
                "measured on {measure_options.samples} of them; {seeds} seeds instead of one."
            ),
            "paper": (
                "Measured on {measure_options.samples} of the training images; {seeds} seeds "
                "instead of one."
            ),
            "h200-augmented": (
                "{data.samples} training images of CIFAR-100 instead of 50,000, with random crops "
                "and flips, without which a test accuracy like the paper's is out of reach; "
                "measured on {measure_options.samples} of them; {seeds} seeds instead of one."
            ),
        },
    ),
    measures=MEASURES,
    paper_values={
        "training accuracy, standard": 0.8922,
        "test accuracy, standard": 0.7237,
        "trace, standard": 7391.83,
        "training accuracy, noise fine-tuning": 0.9019,
        "test accuracy, noise fine-tuning": 0.7166,
        "trace, noise fine-tuning": 4650.93,
    },
    paper_runs=1,
)
