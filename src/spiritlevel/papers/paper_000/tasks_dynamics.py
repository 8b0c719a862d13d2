"""One network of paper 000, Fig. 5: trained, with its flatness followed from epoch to epoch."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from ...errors import SpiritlevelError
from ...study.registry import task
from ...study.runs.ending import DIVERGED
from ...study.runs.measuring import complete, measure_network
from ...study.runs.networks import build_model
from ...study.runs.results import EpochRow, History, RunResult
from ...study.runs.run_data import RunData, load_data
from ...study.runs.running import evaluate, train
from ...study.runs.tasks import task_result
from ...study.settings.run import RunSettings
from ...study.statistics import spearman
from ..task_settings import NoArguments, read_task

KAPPA = "head.kappa"
SHARES = (0, 5, 10, 25, 50, 75, 100)  # of the epochs, in %
FLATNESS, LOSS, TEST_LOSS, ACCURACY = (
    "task.flatness",
    "task.train_loss",
    "task.test_loss",
    "task.test_accuracy",
)
FIRST, MIRRORED = "task.flatness/first", "task.flatness_against_accuracy"


@task("tasks_000_dynamics")
def run(settings: RunSettings, device: str | torch.device = "cpu") -> RunResult:
    """As a study trains and measures, and what it saw on the way as NAME/SHARE of the epochs."""
    read_task(settings, NoArguments)
    check_followed(settings)
    data = load_data(settings, device)
    model = build_model(settings, device)
    initial = copy.deepcopy(model.state_dict())
    start = before_training(model, data, settings, initial)
    history = train(model, data, settings, initial=initial)
    result = complete(settings, model, data, initial=initial, history=history)
    if history.outcome == DIVERGED:
        return result
    more = task_result(settings, along_the_way(start, history), device=device)
    return dataclasses.replace(result, measurements=result.measurements + more.measurements)


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


def before_training(
    model: nn.Module, data: RunData, settings: RunSettings, initial: Mapping[str, Tensor]
) -> Moment:
    """The network as it was built."""
    train_ends = evaluate(model, data.x, data.y)
    row = EpochRow(0, *train_ends, *evaluate(model, data.test_x, data.test_y))
    [kappa] = measure_network(settings, model, data, initial, [KAPPA])
    return Moment(row, kappa.value)


def moments(history: History) -> list[Moment]:
    """Every epoch with the flatness that was measured after it."""
    found = {m.epoch: m.value for m in history.measurements if (m.measure, m.layer) == (KAPPA, "")}
    return [Moment(row, found[row.epoch]) for row in history.epochs]


def along_the_way(start: Moment, history: History) -> dict[str, float]:
    """Flatness, losses and accuracy at the shares of training, and how two of them go together."""
    seen = moments(history)
    found: dict[str, float] = {FIRST: seen[0].flatness, MIRRORED: mirrored(seen)}
    for share in SHARES:
        at = moment_at(share, start, seen)
        found |= {
            f"{FLATNESS}/{share}": at.flatness,
            f"{LOSS}/{share}": at.row.train_loss,
            f"{TEST_LOSS}/{share}": at.row.test_loss,
            f"{ACCURACY}/{share}": at.row.test_accuracy,
        }
    return found


def moment_at(share: int, start: Moment, seen: Sequence[Moment]) -> Moment:
    """After this share of the epochs, in %; beyond 0 % at least one of them."""
    return start if share == 0 else seen[max(1, round(share * len(seen) / 100)) - 1]


def mirrored(seen: Sequence[Moment]) -> float:
    """The rank correlation of flatness with test accuracy over the epochs of one network."""
    return spearman([m.flatness for m in seen], [m.row.test_accuracy for m in seen]).value
