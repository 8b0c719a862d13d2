"""The end of a run: what is measured on the trained network, and what is kept of it."""

from __future__ import annotations

import contextlib
import functools
import json
import pathlib
import platform
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .. import api
from .._core import __version__
from ..checkpoints import checkpoint_bytes
from ..models import build
from .results import EpochRow, MeasurementRow, RunResult, rows_of
from .run_data import DTYPES, RunData
from .settings import RunSettings

BATCH = 512  # samples that a measure sees at a time
DIVERGED = "diverged"


def build_model(settings: RunSettings, device: str | torch.device) -> nn.Module:
    """The untrained network; its weights depend on the seed alone."""
    options = {key: value for key, value in settings.model.items() if key != "name"}
    model = build(settings.model["name"], seed=settings.seed, **options)
    return model.to(device, DTYPES[settings.training["dtype"]])


def complete(
    settings: RunSettings,
    model: nn.Module,
    data: RunData,
    *,
    initial: Mapping[str, Tensor],
    epochs: Sequence[EpochRow],
    outcome: str,
    seconds: float,
    together: bool = False,
) -> RunResult:
    """Measure the trained network and pack up; one whose loss is not a number has no measures.

    `together` says that it was trained with others by `vmap`, which rounds differently.
    """
    found = () if outcome == DIVERGED else _measure(settings, model, data, initial)
    return RunResult(
        outcome=outcome,
        epochs=tuple(epochs),
        measurements=found,
        checkpoint=checkpoint_bytes(model),
        num_train=len(data.x),
        num_test=len(data.test_x),
        seconds=seconds,
        machine=_machine(str(data.x.device), settings.training["threads"], together),
    )


def _measure(
    settings: RunSettings, model: nn.Module, data: RunData, initial: Mapping[str, Tensor]
) -> tuple[MeasurementRow, ...]:
    options: dict[str, Any] = dict(settings.measure_options)
    samples = options.pop("samples", None)
    own = dict(options.pop("options", None) or {})
    x, y = data.x[:samples], data.y[:samples]
    report = api.measure(
        model.eval(),
        list(zip(x.split(BATCH), y.split(BATCH), strict=True)),
        measures=settings.measures,
        options={"initial": initial} | own,
        seed=settings.seed,
        distributed=False,
        **options,
    )
    return rows_of(report)


@contextlib.contextmanager
def repeatable(settings: RunSettings) -> Iterator[None]:
    """The same sums in the same order each time; everything is put back afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(settings.training["threads"])
    try:
        with torch.backends.cudnn.flags(deterministic=True, benchmark=False):
            yield
    finally:
        torch.set_num_threads(before)


@functools.cache
def _machine(device: str, threads: int, together: bool) -> str:
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
    return json.dumps(found, sort_keys=True)
