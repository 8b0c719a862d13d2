"""One network of paper 000, Fig. 5: trained, with its flatness followed from epoch to epoch."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from spiritlevel.ground.errors import SpiritlevelError

from ...claims.experiment import Row
from ...population.registry import NoArguments, read_task, task
from ...population.run_results import EpochRow, History, RunResult
from ...population.runs.networks import NetworkRun
from ...population.runs.outcomes import DIVERGED
from ...population.runs.running import complete, evaluate, measure_network, train
from ...population.runs.tasks import task_result
from ...population.settings.run import RunSettings
from ...statistics import spearman

KAPPA = "head.kappa"
SHARES = (0, 5, 10, 25, 50, 75, 100)  # of the epochs, in %
FLATNESS, LOSS, TEST_LOSS, ACCURACY = (
    "task.flatness",
    "task.train_loss",
    "task.test_loss",
    "task.test_accuracy",
)
FIRST, MIRRORED = "task.flatness/first", "task.flatness_against_accuracy"


@task("tasks_000_dynamics", arguments=NoArguments)
def run(settings: RunSettings, device: str | torch.device = "cpu") -> RunResult:
    """As a study trains and measures, and what it saw on the way as NAME/SHARE of the epochs."""
    read_task(settings, NoArguments)
    check_followed(settings)
    run = NetworkRun.start(settings, device)
    start = before_training(run)
    train(run)
    result = complete(run)
    if run.history.outcome == DIVERGED:
        return result
    more = task_result(settings, along_the_way(start, run.history), device=device)
    return result.with_more(more.measurements)


def check_followed(settings: RunSettings) -> None:
    """Refuse now what would have no flatness to look at after training."""
    names = settings.epoch_measures or settings.measures or ()
    if settings.measure_every != 1 or KAPPA not in names:
        raise SpiritlevelError(
            f"The study must measure {KAPPA} after every epoch for this task. Got measure_every "
            f"{settings.measure_every!r} and the measures {', '.join(names) or 'left out'}. Set "
            f"`measure_every: 1` and `measures: [{KAPPA}]`."
        )


@dataclasses.dataclass(frozen=True)
class Moment:
    """Where a network stands after an epoch; before the first, that is epoch 0."""

    row: EpochRow
    flatness: float


def before_training(run: NetworkRun) -> Moment:
    """The network as it was built."""
    row = EpochRow(
        0,
        *evaluate(run.model, run.data.x, run.data.y),
        *evaluate(run.model, run.data.test_x, run.data.test_y),
    )
    [kappa] = measure_network(run, [KAPPA])
    return Moment(row, kappa.value)


def moments(history: History) -> list[Moment]:
    """Every epoch with the flatness that was measured after it."""
    whole = [m for m in history.measurements if (m.measure, m.layer) == (KAPPA, "")]
    flatness = {measurement.epoch: measurement.value for measurement in whole}
    return [Moment(row, flatness[row.epoch]) for row in history.epochs]


def along_the_way(start: Moment, history: History) -> dict[str, float]:
    """Flatness, losses and accuracy at the shares of training, and how two of them go together."""
    seen = moments(history)
    values: dict[str, float] = {FIRST: seen[0].flatness, MIRRORED: mirrored(seen)}
    for share in SHARES:
        at = moment_at(share, start, seen)
        values |= {
            f"{FLATNESS}/{share}": at.flatness,
            f"{LOSS}/{share}": at.row.train_loss,
            f"{TEST_LOSS}/{share}": at.row.test_loss,
            f"{ACCURACY}/{share}": at.row.test_accuracy,
        }
    return values


def moment_at(share: int, start: Moment, seen: Sequence[Moment]) -> Moment:
    """After this share of the epochs, in %; beyond 0 % at least one of them."""
    return start if share == 0 else seen[max(1, round(share * len(seen) / 100)) - 1]


def distinct_shares(rows: Sequence[Row], name: str) -> tuple[int, ...]:
    """The shares at which NAME/SHARE was looked at; of few epochs, one can be that of two shares.

    >>> distinct_shares([{f"a/{share}": max(share, 10) for share in SHARES}], "a")
    (0, 10, 25, 50, 75, 100)
    """
    *others, last = SHARES[1:]
    looks = {s: [row.get(f"{name}/{s}") for row in rows] for s in SHARES}
    kept = [s for s, later in zip(others, SHARES[2:], strict=True) if looks[s] != looks[later]]
    return (0, *kept, last)


def mirrored(seen: Sequence[Moment]) -> float:
    """The rank correlation of flatness with test accuracy over the epochs of one network."""
    return spearman([m.flatness for m in seen], [m.row.test_accuracy for m in seen]).value
