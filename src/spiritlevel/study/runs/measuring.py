"""The end of a run: what is measured on the trained network, and what is kept of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from ... import api
from ..checkpoints import checkpoint_bytes
from ..run_results import EpochRow, MeasurementRow, RunResult, failure, rows_of
from ..settings.run import RunSettings
from .machine import machine
from .networks import NetworkRun
from .outcomes import DIVERGED, EpochSteps


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
