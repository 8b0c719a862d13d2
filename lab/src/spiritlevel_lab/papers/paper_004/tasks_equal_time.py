"""One network trained for so many seconds, whatever a step costs: methods at equal time."""

from __future__ import annotations

import dataclasses
import math

import torch

from spiritlevel.ground.errors import SpiritlevelError

from ...population.registry import read_task, task
from ...population.run_results import EpochRow, RunResult
from ...population.runs.epochs import Epochs
from ...population.runs.networks import NetworkRun
from ...population.runs.outcomes import ALL_EPOCHS, DIVERGED
from ...population.runs.running import evaluate, measure_network
from ...population.runs.tasks import network_result
from ...population.settings.run import RunSettings
from .table import clock

SECONDS, EPOCHS = "task.training_seconds", "task.epochs"
TOGETHER = 10  # steps between two looks at the clock, each of which waits for the GPU


@dataclasses.dataclass(frozen=True)
class TimeArguments:
    """How long the network is trained."""

    seconds: float = 10.0  # of steps; evaluations and measures do not count

    def __post_init__(self) -> None:
        if self.seconds <= 0.0:
            raise SpiritlevelError(
                f"The study's task.seconds must be above 0. Got {self.seconds!r}. Usual: 10.0."
            )


@task("tasks_004_equal_time", arguments=TimeArguments)
def run(settings: RunSettings, device: str | torch.device = "cpu") -> RunResult:
    """As many steps as fit into the time, which depends on the machine; then all is measured.

    `training.epochs` is the most there may be. A schedule goes by the share of the time.
    """
    arguments = read_task(settings, TimeArguments)
    run = NetworkRun.start(settings, device)
    seconds, epochs = _train(run, arguments.seconds)
    data = run.data
    train = evaluate(run.model, data.x, data.y)
    row = EpochRow(math.ceil(epochs), *train, *evaluate(run.model, data.test_x, data.test_y))
    is_finite = math.isfinite(row.train_loss)
    result = network_result(
        run,
        {SECONDS: seconds, EPOCHS: epochs},
        device=device,
        outcome=ALL_EPOCHS if is_finite else DIVERGED,
        epochs=[row],
    )
    if not is_finite:
        return result
    return result.with_more(measure_network(run, settings.measures))


def _train(run: NetworkRun, most: float) -> tuple[float, float]:
    """Seconds and epochs of training."""
    # Only plain steps can be recorded, and would then take a fifth of their time beside others.
    epochs, place = Epochs(run, may_record=False), run.data.x
    done, started = 0, clock(place)
    for _ in range(run.settings.training.epochs):
        epochs.step.start_epoch()
        for x, y in epochs.batches():
            epochs.step(x, y)
            done += 1
            if done % TOGETHER:
                continue
            share = (clock(place) - started) / most
            if share >= 1.0:
                epochs.step.end_epoch()
                return share * most, done / epochs.num_batches
            epochs.step.schedule_at(share)
        epochs.step.end_epoch()
    return clock(place) - started, done / epochs.num_batches
