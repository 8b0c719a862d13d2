"""The data of a run: the same part of the same set, changed by what the run's seed decides."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
from typing import Any

import torch
from torch import Tensor

from ...errors import SpiritlevelError
from .. import data
from ..settings.run import RunSettings
from .hooks import on_inputs, on_labels

DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclasses.dataclass(frozen=True)
class RunData:
    """Inputs and class labels, on the device and in the precision of the run."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor
    num_classes: int
    validation: tuple[Tensor, Tensor] | None = None


def derived_seed(seed: int, purpose: str) -> int:
    """Seeds for different purposes that have nothing to do with each other."""
    digest = hashlib.sha256(f"{seed}/{purpose}".encode()).digest()
    return int.from_bytes(digest[:7], "big")


def derived_generator(seed: int, purpose: str) -> torch.Generator:
    """A generator of its own for one purpose of a run."""
    return torch.Generator().manual_seed(derived_seed(seed, purpose))


def load_data(settings: RunSettings, device: str | torch.device = "cpu") -> RunData:
    """Training data after the run's interventions; validation and test data as they are."""
    name, test = settings.data.name, settings.data.test
    x, y = _part(name, settings.data.samples)
    test_x, test_y = _load(name, "test") if test is None else _load(test, _whole(test))
    num_classes = 1 + int(max(y.max(), test_y.max()))
    (x, y), kept = _split(x, y, settings.data.validation)
    x = on_inputs(
        x,
        y,
        settings.interventions,
        num_classes=num_classes,
        generator=derived_generator(settings.seed, "patches"),
    )
    y = _labels(y, settings, num_classes)
    dtype = DTYPES[settings.training.dtype]

    def placed(inputs: Tensor) -> Tensor:
        return inputs.to(device, dtype if inputs.is_floating_point() else None)

    return RunData(
        placed(x),
        y.to(device),
        placed(test_x),
        test_y.to(device),
        num_classes,
        None if kept is None else (placed(kept[0]), kept[1].to(device)),
    )


def relabelled(data: RunData, settings: RunSettings) -> RunData:
    """The same data with the labels that another run is trained on; nothing else is copied."""
    _, y = _part(settings.data.name, settings.data.samples)
    (y, _), _ = _split(y, y, settings.data.validation)
    own = _labels(y, settings, data.num_classes)
    return dataclasses.replace(data, y=own.to(data.y.device))


def _labels(y: Tensor, settings: RunSettings, num_classes: int) -> Tensor:
    return on_labels(
        y,
        settings.interventions,
        num_classes=num_classes,
        generator=derived_generator(settings.seed, "labels"),
    )


def _split(
    x: Tensor, y: Tensor, validation: float | None
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor] | None]:
    """What is trained on, and what is held back for validation: the same part in every run."""
    if validation is None:
        return (x, y), None
    count = int(validation) if validation >= 1 else math.floor(validation * len(x) + 0.5)
    if not 0 < count < len(x):
        raise SpiritlevelError(
            f"The study's data.validation must leave samples for both parts. Got {validation!r} "
            f"of {len(x)} samples, which is {count}."
        )
    order = torch.randperm(len(x), generator=derived_generator(0, "validation"))
    held, rest = order[:count], order[count:]
    return (x[rest], y[rest]), (x[held], y[held])


def _whole(test: str) -> str:
    """A file of test data is all of it; a set with parts has one for the test."""
    return "all" if test.lower().endswith(".npz") else "test"


@functools.lru_cache(maxsize=4)
def _load(name: str, split: str) -> tuple[Tensor, Tensor]:
    x, y = data.load(name, split)
    if y.is_floating_point() or y.dim() != 1:
        raise SpiritlevelError(
            f"The study's data must have one class label a sample. {name!r} ({split}) has targets "
            f"of shape {tuple(y.shape)} and type {_word(y.dtype)}."
        )
    return x, y


@functools.lru_cache(maxsize=4)
def _part(name: str, samples: int | None) -> tuple[Tensor, Tensor]:
    x, y = _load(name, "train")
    if samples is None:
        return x, y
    if samples > len(x):
        raise SpiritlevelError(
            f"The study's data.samples must be at most {len(x)}, which is all of {name!r}. "
            f"Got {samples}."
        )
    chosen = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:samples]
    return x[chosen], y[chosen]


def _word(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")
