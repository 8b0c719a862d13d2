"""Paper 000, Table 7: stop by the loss, by flatness, by both, or by the trend of flatness."""

from __future__ import annotations

from collections.abc import Sequence

from ...claims.factors import factor
from ...claims.findings import (
    Finding,
    above,
    below,
    fact,
    verdict,
)
from ...claims.numbers import IntervalEstimate, mean, share
from ...claims.rows import column
from ...claims.trained import FIVE_GUESSES, Limit, Trained
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
from .tasks_stopping import (
    ACCURACY,
    EPOCHS,
    FLATNESS,
    RULES,
    STOPPED,
)

WORDS = {
    "loss": "validation loss",
    "flatness": "flatness",
    "both": "both",
    "trend": "trend of flatness (not in the paper)",
}
ORDER = tuple(WORDS)
SECONDS = "seconds"  # not known here: all rules are applied to one training run
PAPER = {  # epochs, accuracy, flatness, seconds; the second and third stopped none of the 40 runs
    "loss": (40.0, 0.797, 454.21, 578.5),
    "flatness": (100.0, 0.816, 272.84, 1418.2),
    "both": (100.0, 0.816, 272.84, 1422.1),
}
NAMES = ("epochs", "test accuracy", "relative flatness")


def analyse(rows: Sequence[Row]) -> Outcome:
    """Compare the rule on flatness with that on the loss, on the same training run."""
    ours = {rule: _numbers(rows, rule) for rule in ORDER}
    fired = {rule: [row[f"{STOPPED}/{rule}"] == 1 for row in rows] for rule in ORDER}
    better = _more(rows, ACCURACY, "flatness")
    flatter = factor((row[f"{FLATNESS}/loss"], row[f"{FLATNESS}/flatness"]) for row in rows)
    by_trend = _more(rows, ACCURACY, "trend")
    table: list[list[Cell]] = [
        [WORDS[rule], len(rows), share(fired[rule]), *ours[rule]] for rule in ORDER
    ]
    findings = [
        _never(fired["flatness"]),
        below("the rule on flatness ends flatter than the rule on the loss (ratio)", flatter, 1.0),
        above(
            "the rule on flatness ends more accurate than that on the loss (difference)",
            better,
        ),
    ]
    return Outcome(
        table=Table(("rule", "n", "share of runs it stopped", *NAMES), table),
        figure=Figure(
            "epochs",
            "test accuracy",
            [
                Series(
                    WORDS[rule],
                    column(rows, f"{EPOCHS}/{rule}"),
                    column(rows, f"{ACCURACY}/{rule}"),
                )
                for rule in ORDER
            ],
            points=True,
        ),
        beside={
            f"{name}, {WORDS[rule]}": each
            for rule in PAPER
            for name, each in zip(NAMES, ours[rule], strict=True)
        },
        findings=findings,
        agrees=verdict(findings),
        conclusion=(
            f"The 2 % rule on flatness stopped {sum(fired['flatness'])} of {len(rows)} "
            f"runs; against the rule on the loss, which stopped {sum(fired['loss'])}, the accuracy "
            f"changes by {better} and flatness is multiplied by {flatter}. The trend rule stopped "
            f"{sum(fired['trend'])} of {len(rows)}{_when(rows, 'trend')}; "
            f"where it ends, the accuracy differs from that of the rule on the loss by {by_trend}."
        ),
    )


def _never(fired: Sequence[bool]) -> Finding:
    part = "the 2 % rule on flatness stops no run"
    if not fired:  # any statement is true of no runs
        return Finding(part, "undecided", "there is no run")
    return fact(part, not any(fired), f"stopped {sum(fired)} of {len(fired)} runs")


def _when(rows: Sequence[Row], rule: str) -> str:
    """At which epochs the rule stopped; runs that it did not stop do not count."""
    stopped = [row[f"{EPOCHS}/{rule}"] for row in rows if row[f"{STOPPED}/{rule}"] == 1]
    if not stopped:
        return ""
    first, last = min(stopped), max(stopped)
    return f", at epoch {first:g}" if first == last else f", between epochs {first:g} and {last:g}"


def _numbers(rows: Sequence[Row], rule: str) -> list[IntervalEstimate]:
    return [mean(column(rows, f"{name}/{rule}")) for name in (EPOCHS, ACCURACY, FLATNESS)]


def _more(rows: Sequence[Row], name: str, rule: str) -> IntervalEstimate:
    """The mean difference to the rule on the loss, run by run."""
    return mean(row[f"{name}/{rule}"] - row[f"{name}/loss"] for row in rows)


EXPERIMENT = Experiment(
    name="000-table-7",
    title="when to stop: loss, flatness, both, or the trend of flatness",
    source="Table 7",
    claim=(
        "Stopping when flatness has settled within 2 % for 10 epochs never happens within 100 "
        "epochs; training that long ends flatter and more accurate than stopping when the "
        "validation loss no longer improves."
    ),
    analyse=analyse,
    trained=Trained(
        (Limit("test_accuracy", at_least=FIVE_GUESSES),),
        "When training may stop can only be asked of a network that learns.",
    ),
    columns=(
        *("outcome", "seed", "test_accuracy"),
        *(f"{name}/{rule}" for name in (STOPPED, EPOCHS, ACCURACY, FLATNESS) for rule in RULES),
    ),
    rule=(
        "three things hold: the rule on flatness stops no run; its accuracy minus that of the rule "
        "on the loss lies above 0, and its flatness divided by that of the rule on the loss below "
        "1, each with its whole 95 % interval, run by run. Partly, if one or two hold. The trend "
        "rule is reported, not judged: it is not the paper's."
    ),
    set_up=(
        "Each network is trained once for 100 epochs with a tenth of the training data held back. "
        "Because a rule changes nothing before it stops, all four rules are applied to the same "
        "training: no better validation loss for 10 epochs; relative flatness of the head changed "
        "by less than 2 % in each of 10 epochs; both at once; and, our own rule, the trend of the "
        "logarithm of flatness over 10 epochs surely within 2 % per epoch. A run that a rule does "
        "not stop counts with its last epoch in the means. The paper's times have no counterpart "
        "here: no rule has a training of its own that could be timed."
    ),
    scaled_down=ScaleTexts(
        "000-table-7",
        {
            "": (
                "Not CIFAR-10 but {data.samples} handwritten digits of 8×8 pixels, and a small "
                "convolutional network with the same kind of head instead of ResNet-18. What "
                "holds on such a task need not hold on the paper's. {seeds} runs instead of 40; "
                "measured on {measure_options.samples} images."
            ),
            "quick": "The same with {seeds} runs of {training.epochs} epochs: a trial.",
            "paper": (
                "Random initial weights; measured on {measure_options.samples} of the images."
            ),
            "h200": (
                "{data.samples} images, {seeds} runs instead of 40, measured on "
                "{measure_options.samples} of the images; random initial weights."
            ),
        },
    ),
    measures=("head.kappa",),
    paper_values={
        f"{name}, {WORDS[rule]}": value
        for rule, values in PAPER.items()
        for name, value in zip((*NAMES, SECONDS), values, strict=True)
    },
)
