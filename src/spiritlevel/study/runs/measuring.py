"""The end of a run: what is measured on the trained network, and what is kept of it."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import pathlib
import platform
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ... import api
from ...records import __version__
from ..checkpoints import checkpoint_bytes
from ..settings.run import RunSettings
from .machine import TF32
from .networks import NetworkRun
from .outcomes import DIVERGED
from .results import EpochRow, MeasurementRow, RunResult, failure, rows_of


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


def measure_epoch(run: NetworkRun, row: EpochRow) -> tuple[MeasurementRow, ...] | None:
    """What the study measures after this epoch, while it trains; None if it does not."""
    settings = run.settings
    if not settings.measured_at(row.epoch) or not math.isfinite(row.train_loss):
        return None
    return measure_network(
        run, settings.measures if settings.epoch_measures is None else settings.epoch_measures
    )


def measure_network(run: NetworkRun, names: Sequence[str] | None) -> tuple[MeasurementRow, ...]:
    """These measures of the run's network on its training data, as the study asks for them."""
    asked = run.settings.measure_options
    x, y = run.data.x[: asked.samples], run.data.y[: asked.samples]
    report = api.measure(
        run.model.eval(),
        list(zip(x.split(asked.batch), y.split(asked.batch), strict=True)),
        measures=names,
        options=options_of(run.settings, run.initial),
        seed=run.settings.seed,
        distributed=False,
        **asked.arguments,
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


def machine(device: str | torch.device, threads: int, *, together: bool = False) -> str:
    """Where a run was made, and with which versions, as JSON."""
    name = str(device)
    tf32 = TF32.of_this_process() if name.startswith("cuda") else None
    return _machine(name, threads, together, tf32)


@functools.cache
def _machine(device: str, threads: int, together: bool, tf32: TF32 | None) -> str:
    chip = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        lines = pathlib.Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        chip = next((s.partition(":")[2].strip() for s in lines if "model name" in s), chip)
    facts = {
        "host": platform.node(),
        "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else chip,
        "threads": threads,
        "trained": "together" if together else "alone",
        "system": platform.platform(),
        "spiritlevel": __version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
    }
    if tf32 is not None:  # on a GPU, where it decides about the last digits
        facts |= {
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
            "tf32_convolutions": tf32.convolutions,
            "tf32_products": tf32.products,
        }
    return json.dumps(facts, sort_keys=True)
