"""Paper 000, Fig. 7: flatness of the head while a trained network learns another task.

The task trains one network on one data set, then three ways on another.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Sequence

import torch
from torch import nn

from spiritlevel.records.content import Cell, Figure, Table

from ...claims.contrasts import factor, line
from ...claims.experiment import Experiment, Outcome, Row
from ...claims.findings import above, below, estimate, every, fact, verdict, with_added
from ...claims.numbers import IntervalEstimate, mean
from ...claims.rows import column
from ...population.registry import read_task, task
from ...population.run_results import RunResult
from ...population.runs.networks import NetworkRun, head_path
from ...population.runs.outcomes import DIVERGED
from ...population.runs.run_data import load_data
from ...population.runs.running import complete, train
from ...population.runs.tasks import task_result
from ...population.settings.run import RunSettings
from ...population.settings.sections import DataSettings
from ...statistics import spearman
from .tasks_dynamics import (
    SHARES,
    before_training,
    check_followed,
    distinct_shares,
    moment_at,
    moments,
)

LOW, HIGH, FROZEN = STRATEGIES = ("low", "high", "frozen")
FLATNESS, PEAK, ACCURACY, LOSS = (
    "task.flatness",
    "task.peak_flatness",
    "task.accuracy",
    "task.train_loss",
)
BEFORE = "task.pretrained_accuracy"


@dataclasses.dataclass(frozen=True)
class TransferArguments:
    """How the network is trained first, and the learning rate of each strategy after that."""

    pretrain: str = "mnist"  # "": the network comes with trained weights
    pretrain_samples: int = 2000
    pretrain_epochs: int = 5
    pretrain_lr: float = 0.01
    low: float = 1e-4
    high: float = 1e-2
    frozen: float = 1e-2


@task("tasks_000_transfer", arguments=TransferArguments)
def run(settings: RunSettings, device: str | torch.device = "cpu") -> RunResult:
    """Every number comes as NAME/STRATEGY; all start from the same weights and the same new head.

    The run that the store keeps (epochs, measures, checkpoint) is that of the last strategy.
    """
    arguments = read_task(settings, TransferArguments)
    check_followed(settings)
    pretrained, values = _pretrained(settings, arguments, device)
    for strategy in STRATEGIES:
        rate: float = getattr(arguments, strategy)
        result, adapted = _adapted(pretrained, strategy_settings(settings, strategy, rate), device)
        values |= {name.format(strategy): value for name, value in adapted.items()}
    more = task_result(settings, values, device=device)
    return result.with_more(more.measurements)


def strategy_settings(settings: RunSettings, strategy: str, lr: float) -> RunSettings:
    """The same run at the rate of a strategy; only the head learns where the backbone is frozen."""
    training = dataclasses.replace(settings.training, lr=lr)
    if strategy == FROZEN:
        training = dataclasses.replace(training, freeze="backbone")
    return dataclasses.replace(settings, training=training)


def copy_backbone(source: nn.Module, target: nn.Module) -> None:
    """All weights and statistics but those of the head, whose classes are others."""
    head = f"{head_path(target)}."
    body = {k: v for k, v in source.state_dict().items() if not k.startswith(head)}
    new_head = {k: v for k, v in target.state_dict().items() if k.startswith(head)}
    target.load_state_dict(body | new_head)


def _pretrained(
    settings: RunSettings, arguments: TransferArguments, device: str | torch.device
) -> tuple[nn.Module, dict[str, float]]:
    if not arguments.pretrain:
        return NetworkRun.start(settings, device).model, {}
    first = dataclasses.replace(
        settings,
        data=DataSettings(arguments.pretrain, arguments.pretrain_samples),
        training=dataclasses.replace(
            settings.training, epochs=arguments.pretrain_epochs, lr=arguments.pretrain_lr
        ),
        measure_every=None,
    )
    # The head of this network has the classes of these data.
    classes = {**settings.model.arguments, "classes": load_data(first).num_classes}
    first = dataclasses.replace(first, model=dataclasses.replace(first.model, arguments=classes))
    run = NetworkRun.start(first, device)
    train(run)
    return run.model, {BEFORE: run.history.epochs[-1].test_accuracy}


def _adapted(
    pretrained: nn.Module, settings: RunSettings, device: str | torch.device
) -> tuple[RunResult, dict[str, float]]:
    run = NetworkRun.start(settings, device)
    copy_backbone(pretrained, run.model)
    run.initial = copy.deepcopy(run.model.state_dict())
    start = before_training(run)
    train(run)
    result = complete(run)
    if run.history.outcome == DIVERGED:
        return result, {}
    seen = moments(run.history)
    values = {
        f"{PEAK}/{{}}": max(moment.flatness for moment in seen),
        f"{ACCURACY}/{{}}": seen[-1].row.test_accuracy,
        f"{LOSS}/{{}}": seen[-1].row.train_loss,
    }
    for share in SHARES:
        values[f"{FLATNESS}/{{}}/{share}"] = moment_at(share, start, seen).flatness
    return result, values


TOGETHER = "Spearman, final flatness and accuracy"
P = "p of that correlation (the paper: below this)"
EARLY = (
    "the peak at the high rate comes early: before the middle of training (where it is, in % of "
    "the epochs)"
)
MIDDLE = 50.0  # % of the epochs: nothing later can be called early
WORDS = {LOW: "low rate", HIGH: "high rate", FROZEN: "frozen backbone"}


def analyse(experiment: Experiment, rows: Sequence[Row]) -> Outcome:
    """Is a frozen backbone sharpest, does a high rate peak early, are flat networks more accurate?

    All strategies of a run start from the same weights, so they are compared run by run.
    """
    against_low, against_high = (
        _ratio(rows, _last(strategy), _last(FROZEN)) for strategy in (LOW, HIGH)
    )
    peak = _ratio(rows, f"{PEAK}/{LOW}", f"{PEAK}/{HIGH}")
    ends = [
        (row.get(_last(strategy)), row.get(f"{ACCURACY}/{strategy}"))
        for row in rows
        for strategy in WORDS
    ]
    together = spearman([flatness for flatness, _ in ends], [accuracy for _, accuracy in ends])
    places = [_place_of_peak(row, HIGH) for row in rows]
    when = mean(place for place in places if place)
    shares = distinct_shares(rows, f"{FLATNESS}/{LOW}")
    fall = _ratio(rows, f"{FLATNESS}/{LOW}/0", _last(LOW))
    steady = mean(_trend(row, LOW, shares) for row in rows)
    table: list[list[Cell]] = [
        [
            WORDS[strategy],
            len(rows),
            *(mean(column(rows, f"{name}/{strategy}")) for name in (ACCURACY, LOSS, PEAK)),
            *(_along(rows, strategy, shares)),
        ]
        for strategy in STRATEGIES
    ]
    findings = [
        every(
            "a frozen backbone ends with larger flatness than both others (ratios)",
            [
                above("over the low rate", against_low, 1.0),
                above("over the high rate", against_high, 1.0),
            ],
        ),
        above(
            "the peak of flatness is higher at the high rate than at the low (ratio of the largest "
            "values after the start)",
            peak,
            1.0,
        ),
        below(
            "networks that end flatter are more accurate: the rank correlation of flatness with "
            "accuracy is negative",
            together,
            paper=experiment.paper_values[TOGETHER],
            comparable=experiment.comparable,
        ),
    ]
    added = [
        below(EARLY, when, MIDDLE)
        if when.n or 0.0 not in places
        else fact(EARLY, False, "there is no peak"),
        every(
            "at the low rate flatness falls smoothly",
            [
                below("at the end over the start", fall, 1.0),
                below("rank correlation with the epochs", steady),
            ],
        ),
    ]
    return Outcome(
        table=Table(
            (
                *("strategy", "n", "test accuracy", "training loss", "largest flatness"),
                *(f"flatness after {each} % of the epochs" for each in shares),
            ),
            table,
        ),
        figure=Figure(
            "% of the epochs",
            "relative flatness of the head",
            [
                line(WORDS[strategy], shares, _along(rows, strategy, shares))
                for strategy in STRATEGIES
            ],
            log_y=True,
        ),
        reproduced_values={
            TOGETHER: estimate(together),
            P: IntervalEstimate(together.p, math.nan, math.nan, together.n),
            "final flatness, frozen backbone": mean(column(rows, _last(FROZEN))),
        },
        findings=[*findings, *added],
        agrees=with_added(verdict(findings), added),
        conclusion=(
            f"At the end the head's relative flatness with a frozen backbone is {against_low} "
            f"times that of the low rate and {against_high} times that of the high rate; the "
            f"largest flatness after the start is at the high rate {peak} times that at the low "
            f"one (n = {peak.n}); {_peaks(places, when)}; at the low rate flatness is multiplied "
            f"by {fall} from start to end; final flatness and test accuracy have a rank "
            f"correlation of {together} (n = {together.n})."
        ),
    )


def _last(strategy: str) -> str:
    return f"{FLATNESS}/{strategy}/100"


def _along(rows: Sequence[Row], strategy: str, shares: Sequence[int]) -> list[IntervalEstimate]:
    return [mean(column(rows, f"{FLATNESS}/{strategy}/{each}")) for each in shares]


def _ratio(rows: Sequence[Row], divisor: str, name: str) -> IntervalEstimate:
    return factor((row.get(divisor), row.get(name)) for row in rows)


def _place_of_peak(row: Row, strategy: str) -> float | None:
    """After how many % of the epochs flatness is largest; 0 if it never is above the start."""
    looks = [(row.get(f"{FLATNESS}/{strategy}/{each}"), each) for each in reversed(SHARES)]
    recorded = [(flatness, each) for flatness, each in looks if flatness is not None]
    return float(max(recorded, key=lambda look: look[0])[1]) if recorded else None


def _peaks(places: Sequence[float | None], when: IntervalEstimate) -> str:
    """Where the peaks are, or that there are none."""
    at_start, known = places.count(0.0), len(places) - places.count(None)
    if at_start == known and known:
        return "at the high rate it never rises above the start, so there is no peak"
    said = f"the peak at the high rate comes after {when} % of the epochs"
    return f"{said}, and {at_start} of {known} runs have none" if at_start else said


def _trend(row: Row, strategy: str, shares: Sequence[int]) -> float:
    """The rank correlation of flatness with the epochs, over all points of one run."""
    return spearman(shares, [row.get(f"{FLATNESS}/{strategy}/{each}") for each in shares]).value
