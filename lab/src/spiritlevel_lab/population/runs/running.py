"""One run from its settings to its result: the same bits each time on one machine.

A network is trained and followed; at its end it is measured, and packed up.
"""

from __future__ import annotations

import dataclasses
import math
import pathlib
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spiritlevel.inputs.checkpoints import checkpoint_bytes
from spiritlevel.verbs import measuring as api

from ..run_results import EpochRow, MeasurementRow, RunResult, failure, rows_of
from ..settings.run import RunSettings
from .epochs import Epochs
from .machine import machine, repeatable
from .networks import NetworkRun
from .outcomes import DIVERGED, EpochSteps, finite
from .run_data import derived_seed
from .tasks import run_task
from .training_snapshots import OnEpoch, RunAttempt, at_work, current


def complete(run: NetworkRun, *, together: bool = False, keep: bool = False) -> RunResult:
    """Measure the trained network and pack up; one whose loss is not a number has no measures.

    `together` says that it was trained with others by `vmap`, which rounds differently. With `keep`
    a measuring that fails does not take along what was trained: it comes back with the error.
    """
    measurements: tuple[MeasurementRow, ...] = ()
    error: str | None = None
    try:
        if run.history.outcome != DIVERGED:
            measurements = measure_network(run, run.settings.measures)
    except Exception as failed:
        if not keep:
            raise
        error = failure(failed)
    return RunResult(
        outcome=run.history.outcome,
        epochs=tuple(run.history.epochs),
        measurements=measurements,
        epoch_measurements=tuple(run.history.measurements),
        num_train=len(run.data.x),
        num_test=len(run.data.test_x),
        seconds=0.0,  # known only at the end
        machine=machine(run.data.x.device, run.settings.training.threads, together=together),
        checkpoint=checkpoint_bytes(run.model),
        error=error,
    )


def follow(run: NetworkRun, row: EpochRow, steps: EpochSteps) -> None:
    """After an epoch: measure where the study says so, and decide whether training ends."""
    names, measured = run.settings.epoch_measures, None
    if run.settings.measured_at(row.epoch) and math.isfinite(row.train_loss):
        measured = measure_network(run, run.settings.measures if names is None else names)
    run.history.add(row, measured)
    run.history.outcome = run.ending.after(row, measured, steps)


def measure_network(run: NetworkRun, names: Sequence[str] | None) -> tuple[MeasurementRow, ...]:
    """These measures of the run's network on its training data, as the study asks for them."""
    asked, options = run.settings.measure_options, options_of(run.settings, run.initial)
    x, y = run.data.x[: asked.samples], run.data.y[: asked.samples]
    batches = list(zip(x.split(asked.batch), y.split(asked.batch), strict=True))
    return measured_rows(run.settings, run.model.eval(), batches, names, options)


def measured_rows(
    settings: RunSettings,
    model: nn.Module,
    data: Iterable[Any],
    names: Sequence[str] | None,
    options: Mapping[str, Any],
    **more: Any,
) -> tuple[MeasurementRow, ...]:
    """What `spiritlevel.measure` says with the arguments that a study gives, and `more`."""
    report = api.measure(
        model,
        data,
        measures=names,
        options=options,
        seed=settings.seed,
        distributed=False,
        **settings.measure_options.arguments,
        **more,
    )
    return rows_of(report)


def options_of(settings: RunSettings, initial: Mapping[str, Tensor]) -> dict[str, Any]:
    """Those of the measures, with what a run knows of itself where its study says nothing.

    AdamW takes the decay off the weights beside the loss: there is no term in the loss.
    """
    training = settings.training
    decay = 0.0 if training.optimizer == "adamw" else training.weight_decay
    known = {"initial": initial, "weight_decay": decay}
    return known | dict(settings.measure_options.options or {})


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
