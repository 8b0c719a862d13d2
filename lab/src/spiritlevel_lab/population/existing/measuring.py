"""The run of a given network: its weights are loaded, evaluated and measured, and not trained."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from spiritlevel.ground.errors import SpiritlevelError
from spiritlevel.inputs.checkpoints import load_checkpoint
from spiritlevel.inputs.data.loading import in_batches, load_samples
from spiritlevel.inputs.models.registry import build
from spiritlevel.measures.setup import Setup
from spiritlevel.model.batches import map_tensors
from spiritlevel.verbs.landscape.cache import of_tensors
from spiritlevel.verbs.measuring import performance

from ..registry import read_task, task
from ..run_results import MeasurementRow, RunResult
from ..runs.outcomes import DIVERGED, MEASURED
from ..runs.run_data import DTYPES, whole_test
from ..runs.running import measured_rows
from ..runs.tasks import number_row, task_result
from ..settings.run import RunSettings

TASK = "measure_network"
IN_PYTHON = "network_in_python"  # the task of networks that no file holds
Batches = list[tuple[Any, Tensor]]


@dataclasses.dataclass(frozen=True)
class CheckpointTask:
    """What the task of one network is told: files, the fingerprints of what was in them, and how.

    Args:
        checkpoint: a file or folder with its weights.
        weights: their fingerprint.
        initial: a checkpoint from before training, for measures that ask for it; "" for none.
        initial_weights: its fingerprint.
        split: the part of the data that is measured on.
        loss: by its name.
    """

    checkpoint: str = ""
    weights: str = ""
    initial: str = ""
    initial_weights: str = ""
    split: str = "train"
    loss: str = "cross_entropy"


@dataclasses.dataclass(frozen=True)
class MeasuredNetwork:
    """A network in eval mode, with what it is measured on; `initial` is from before training."""

    model: nn.Module
    data: Iterable[Any]
    test: Iterable[Any] | None = None
    initial: Mapping[str, Tensor] | None = None
    loss: Any = "cross_entropy"
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # others of `measure`


def fingerprint(model: nn.Module) -> str:
    """A checksum of all parameters and buffers, the same whatever file they came from."""
    state = {key: value for key, value in model.state_dict().items() if isinstance(value, Tensor)}
    return of_tensors(state)


def state_of(model: nn.Module) -> dict[str, Tensor]:
    """A copy of its parameters and buffers."""
    tensors = ((k, v) for k, v in model.state_dict().items() if isinstance(v, Tensor))
    return {key: value.clone() for key, value in tensors}


def empty_network(settings: RunSettings) -> nn.Module:
    """The network of a run before its weights are loaded.

    In the precision of the run: loading into another one would round the weights.
    """
    model = build(settings.model.name, seed=0, **settings.model.arguments)
    return model.to(DTYPES[settings.training.dtype]).eval()


@task(TASK, arguments=CheckpointTask)
def measure_checkpoint(settings: RunSettings, device: str | torch.device) -> RunResult:
    """Load the weights of one network and measure it."""
    given = read_task(settings, CheckpointTask)
    model = empty_network(settings)
    initial = None
    if given.initial:
        _load(model, given.initial, given.initial_weights)
        initial = state_of(model)
    _load(model, given.checkpoint, given.weights)
    data, test = load_parts(settings)
    found = MeasuredNetwork(model.to(device), data, test, initial, given.loss)
    return measured(settings, found, device)


@task(IN_PYTHON, uses=())
def _network_in_python(settings: RunSettings, device: str | torch.device) -> RunResult:
    raise SpiritlevelError(
        "This network was given as a Python object, which no file holds. Call "
        "spiritlevel_lab.measure_networks again with the same networks and folder; what was "
        "measured is kept."
    )


def measured(
    settings: RunSettings, found: MeasuredNetwork, device: str | torch.device
) -> RunResult:
    """Loss and accuracy on the data and the test data, then the measures.

    A network whose loss or weights are not numbers has no measures, as one that diverged in
    training.
    """
    rows: list[MeasurementRow] = []
    counts = {"train": 0, "test": 0}
    finite = all(bool(parameter.isfinite().all()) for parameter in found.model.parameters())
    parts = {"train": found.data} | ({} if found.test is None else {"test": found.test})
    for part, data in parts.items() if finite else ():
        well = performance(Setup(found.loss, distributed=False), found.model, data)
        counts[part] = well.num_samples
        rows.append(number_row(f"{part}_loss", well.loss))
        if well.accuracy is not None:
            rows.append(number_row(f"{part}_accuracy", well.accuracy))
        finite = finite and (part == "test" or math.isfinite(well.loss))
    if finite:
        options = {} if found.initial is None else {"initial": found.initial}
        options |= dict(settings.measure_options.options or {})
        asked = (settings, found.model, found.data, settings.measures, options)
        rows += measured_rows(*asked, loss=found.loss, **found.arguments)
    result = task_result(
        settings,
        {},
        device=device,
        outcome=MEASURED if finite else DIVERGED,
        num_train=counts["train"],
        num_test=counts["test"],
    )
    return dataclasses.replace(result, measurements=tuple(rows))


def load_parts(settings: RunSettings) -> tuple[Batches, Batches | None]:
    """What is measured on, and the test data where the study names some."""
    split = read_task(settings, CheckpointTask).split
    name, test = settings.data.name, settings.data.test
    size, dtype = settings.measure_options.batch, settings.training.dtype
    data = _batches(name, split, settings.data.samples, size, dtype)
    if test is None:
        return data, None
    part = "test" if test == name else whole_test(test)
    return data, _batches(test, part, None, size, dtype)


@functools.lru_cache(maxsize=4)  # every network of a study has the same
def _batches(name: str, split: str, samples: int | None, size: int, dtype: str) -> Batches:
    x, y, _ = load_samples(name, split=split, samples=samples)
    kind = DTYPES[dtype]
    x, y = map_tensors(lambda t: t.to(kind) if t.is_floating_point() else t, (x, y))
    return in_batches(x, y, size)


def _load(model: nn.Module, path: str, expected: str) -> None:
    load_checkpoint(model, path)
    if expected and fingerprint(model) != expected:
        raise SpiritlevelError(
            f"The checkpoint {path!r} has other weights than when the study was started. Put the "
            "old file back, or measure the new one in another folder."
        )
