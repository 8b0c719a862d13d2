"""One network trained for so many seconds, whatever a step costs: methods at equal time."""

from __future__ import annotations

import dataclasses
import math

import torch

from ...errors import SpiritlevelError
from ...study.registry import read_task, task
from ...study.run_results import EpochRow, RunResult
from ...study.runs.epochs import Epochs
from ...study.runs.measuring import measure_network
from ...study.runs.networks import NetworkRun
from ...study.runs.outcomes import ALL_EPOCHS, DIVERGED
from ...study.runs.running import evaluate
from ...study.settings.run import RunSettings
from ..task_numbers import network_result
from .tasks_flatness_penalty import clock

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
    return network_result(
        run,
        {SECONDS: seconds, EPOCHS: epochs},
        device=device,
        outcome=ALL_EPOCHS if is_finite else DIVERGED,
        epochs=[row],
        measured=measure_network(run, settings.measures) if is_finite else (),
    )


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
