"""One run from its settings to its result: the same bits each time on one machine."""

from __future__ import annotations

import dataclasses
import pathlib
import time

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..run_results import EpochRow, RunResult
from ..settings.run import RunSettings
from .epochs import Epochs
from .machine import repeatable
from .measuring import complete, follow
from .networks import NetworkRun
from .outcomes import finite
from .run_data import derived_seed
from .tasks import run_task
from .training_snapshots import OnEpoch, RunAttempt, at_work, current

EVALUATED = 1024  # samples at a time


def run_one(
    settings: RunSettings,
    *,
    device: str | torch.device = "cpu",
    on_epoch: OnEpoch | None = None,
    unfinished: pathlib.Path | None = None,
) -> RunResult:
    """Train, follow, measure, or do the run's task. Everything depends on `settings` alone.

    Where training went well and measuring did not, the result says so in its `error`. In the folder
    `unfinished` each training is saved on the way; after an interruption it goes on from there.
    """
    place = torch.device(device)
    start, attempt = time.perf_counter(), RunAttempt(settings.id, on_epoch, unfinished)
    with (
        repeatable(settings.training.threads),
        torch.random.fork_rng(devices=[place] if place.type == "cuda" else []),
        at_work(attempt),
    ):
        torch.manual_seed(derived_seed(settings.seed, "training"))  # of dropout and its like
        if settings.task is not None:
            result = run_task(settings, device)
        else:
            run = NetworkRun.start(settings, device)
            train(run)
            result = complete(run, keep=True)
    return with_seconds(result, attempt.seconds_before + time.perf_counter() - start)


def with_seconds(result: RunResult, seconds: float) -> RunResult:
    """The result with the time it took, known only at the end."""
    return dataclasses.replace(result, seconds=seconds)


def train(run: NetworkRun) -> None:
    """Train until a stop rule or the last epoch, and measure on the way where the study says so.

    What was seen goes into the run's history. A training that was saved goes on from there.
    """
    saved, epochs = current().training(run), Epochs(run)
    if saved.state is not None:
        run.ending.replay(run.history, run.settings)
        epochs.restore(saved.state)
    while not run.history.outcome:
        epoch = saved.epoch + 1
        epochs.step.start_epoch()
        for x, y in epochs.batches():
            epochs.step(x, y)
        steps = epochs.step.end_epoch()
        if run.is_due(epoch, steps) or not _is_finite(run.model):
            follow(run, _evaluated(run, epoch), steps)
        saved.after_epoch(epochs.state)


def _is_finite(model: nn.Module) -> bool:
    return bool(finite(param[None] for param in model.parameters())[0])


def _evaluated(run: NetworkRun, epoch: int) -> EpochRow:
    model, data = run.model, run.data
    validation = (None, None) if data.validation is None else evaluate(model, *data.validation)
    training, test = evaluate(model, data.x, data.y), evaluate(model, data.test_x, data.test_y)
    return EpochRow(epoch, *training, *test, *validation)


@torch.no_grad()
def evaluate(model: nn.Module, x: Tensor, y: Tensor) -> tuple[float, float]:
    """Mean loss and accuracy, in eval mode."""
    model.eval()
    loss = torch.zeros((), dtype=torch.float64, device=x.device)
    correct = torch.zeros((), dtype=torch.int64, device=x.device)
    for part, targets in zip(x.split(EVALUATED), y.split(EVALUATED), strict=True):
        outputs = model(part)
        loss += F.cross_entropy(outputs, targets, reduction="none").double().sum()
        correct += (outputs.argmax(dim=1) == targets).sum()
    return float(loss) / len(x), float(correct) / len(x)
