"""The end of a run: what is measured on the trained network, and what is kept of it."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import pathlib
import platform
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from ... import api
from ...results import __version__
from ..checkpoints import checkpoint_bytes
from ..settings.run import RunSettings
from .ending import DIVERGED
from .results import EpochRow, History, MeasurementRow, RunResult, describe, rows_of
from .run_data import RunData
from .tf32 import TF32

BATCH = 512  # samples that a measure sees at a time


def complete(
    settings: RunSettings,
    model: nn.Module,
    data: RunData,
    *,
    initial: Mapping[str, Tensor],
    history: History,
    together: bool = False,
    keep: bool = False,
) -> RunResult:
    """Measure the trained network and pack up; one whose loss is not a number has no measures.

    `together` says that it was trained with others by `vmap`, which rounds differently. With `keep`
    a measuring that fails does not take along what was trained: it comes back with the error.
    """
    measurements: tuple[MeasurementRow, ...] = ()
    error: str | None = None
    try:
        if history.outcome != DIVERGED:
            measurements = measure_network(settings, model, data, initial, settings.measures)
    except Exception as failed:
        if not keep:
            raise
        error = describe(failed)
    return RunResult(
        outcome=history.outcome,
        epochs=tuple(history.epochs),
        measurements=measurements,
        epoch_measurements=tuple(history.measurements),
        checkpoint=checkpoint_bytes(model),
        num_train=len(data.x),
        num_test=len(data.test_x),
        seconds=0.0,  # known only at the end
        machine=machine(data.x.device, settings, together=together),
        error=error,
    )


def measure_epoch(
    settings: RunSettings,
    model: nn.Module,
    data: RunData,
    initial: Mapping[str, Tensor],
    row: EpochRow,
) -> tuple[MeasurementRow, ...] | None:
    """What the study measures after this epoch, while it trains; None if it does not."""
    if not settings.measured_at(row.epoch) or not math.isfinite(row.train_loss):
        return None
    names = settings.measures if settings.epoch_measures is None else settings.epoch_measures
    return measure_network(settings, model, data, initial, names)


def measure_network(
    settings: RunSettings,
    model: nn.Module,
    data: RunData,
    initial: Mapping[str, Tensor],
    names: Sequence[str] | None,
) -> tuple[MeasurementRow, ...]:
    """These measures on the run's training data, with the run's options."""
    asked = settings.measure_options
    x, y = data.x[: asked.samples], data.y[: asked.samples]
    report = api.measure(
        model.eval(),
        list(zip(x.split(BATCH), y.split(BATCH), strict=True)),
        measures=names,
        options={"initial": initial} | dict(asked.options or {}),
        seed=settings.seed,
        distributed=False,
        **asked.arguments,
    )
    return rows_of(report)


@contextlib.contextmanager
def repeatable(settings: RunSettings) -> Iterator[None]:
    """The same sums in the same order each time; everything is put back afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(settings.training.threads)
    try:
        with torch.backends.cudnn.flags(
            enabled=True,
            deterministic=True,
            benchmark=False,
            allow_tf32=TF32.of_this_process().convolutions,
        ):
            yield
    finally:
        torch.set_num_threads(before)


def machine(device: str | torch.device, settings: RunSettings, *, together: bool = False) -> str:
    """Where a run was made, and with which versions, as JSON."""
    name = str(device)
    tf32 = TF32.of_this_process() if name.startswith("cuda") else None
    return _machine(name, settings.training.threads, together, tf32)


@functools.cache
def _machine(device: str, threads: int, together: bool, tf32: TF32 | None) -> str:
    chip = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
        chip = next((s.partition(":")[2].strip() for s in lines if "model name" in s), chip)
    found = {
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
        found |= {
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
            "tf32_convolutions": tf32.convolutions,
            "tf32_products": tf32.products,
        }
    return json.dumps(found, sort_keys=True)
