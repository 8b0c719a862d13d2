"""The data of a run: the same part of the same set, changed by what the run's seed decides.

The interventions `label_noise` and `leakage` change the training data once. The test data are never
changed.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from spiritlevel.ground.errors import SpiritlevelError, brief
from spiritlevel.inputs.data import load

from .. import interventions as changes
from ..settings.run import RunSettings
from ..settings.sections import InterventionSettings

PATCHES, PATCH_SIZE = "digits", 8  # those of the package; paper 001 has MNIST's at this size
AT_ONCE = 1024  # samples that are normalized in one step: their copies in float64 stay small
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
    """A seed for one purpose of a run, independent of those for other purposes."""
    digest = hashlib.sha256(f"{seed}/{purpose}".encode()).digest()
    return int.from_bytes(digest[:7], "big")


def derived_generator(seed: int, purpose: str) -> torch.Generator:
    """A random generator for one purpose of a run."""
    return torch.Generator().manual_seed(derived_seed(seed, purpose))


def load_data(settings: RunSettings, device: str | torch.device = "cpu") -> RunData:
    """Training data after the run's interventions; validation and test data as they are."""
    name, test = settings.data.name, settings.data.test
    x, y = _part(name, "train", settings.data.samples)
    place = (name, "test") if test is None else (test, whole_test(test))
    test_x, test_y = _part(*place, settings.data.test_samples, "test_samples")
    num_classes = 1 + int(max(y.max(), test_y.max()))
    (x, y), validation = _split(x, y, settings.data.validation)
    normalized = _normalization(settings)
    x = _inputs(x, y, settings, num_classes)
    y = _labels(y, settings, num_classes)
    dtype = DTYPES[settings.training.dtype]

    def placed(inputs: Tensor) -> Tensor:
        inputs = inputs.to(device, dtype if inputs.is_floating_point() else None)
        return inputs if normalized is None else normalized(inputs)

    return RunData(
        placed(x),
        y.to(device),
        placed(test_x),
        test_y.to(device),
        num_classes,
        None if validation is None else (placed(validation[0]), validation[1].to(device)),
    )


def first_inputs(settings: RunSettings) -> Tensor:
    """The inputs of one sample, in the run's precision, for what depends on their shape alone."""
    x = _part(settings.data.name, "train", settings.data.samples)[0][:1]
    return x.to(DTYPES[settings.training.dtype] if x.is_floating_point() else None)


def relabelled(data: RunData, settings: RunSettings) -> RunData:
    """The same data with the labels that another run is trained on; nothing else is copied."""
    _, y = _part(settings.data.name, "train", settings.data.samples)
    (y, _), _ = _split(y, y, settings.data.validation)
    labels = _labels(y, settings, data.num_classes)
    return dataclasses.replace(data, y=labels.to(data.y.device))


def class_patches(interventions: InterventionSettings, num_classes: int) -> Tensor:
    """One patch for each class, for the intervention `leakage`."""
    images, labels = load(interventions.leakage_patches or PATCHES, "train")
    size = interventions.leakage_size or PATCH_SIZE
    return changes.class_patches(images, labels, num_classes, size=size)


def _inputs(x: Tensor, y: Tensor, settings: RunSettings, num_classes: int) -> Tensor:
    """The training inputs with the patch of their class, or of any class in the control group.

    The control group's patches here are what is evaluated and measured on; in training each batch
    gets others in the same place.
    """
    if settings.interventions.leakage is None:
        return x
    patches = class_patches(settings.interventions, num_classes)
    if settings.interventions.leakage == "class":
        return changes.leakage_patch(x, y, patches)
    return changes.control_patch(x, patches, derived_generator(settings.seed, "patches"))


def _normalization(settings: RunSettings) -> Callable[[Tensor], Tensor] | None:
    """What brings each channel of the training inputs to mean 0 and deviation 1; or None."""
    data = settings.data
    if not data.normalize:
        return None
    spread, mean = _channels(data.name, data.samples, data.validation)

    def normalized(inputs: Tensor) -> Tensor:
        there = (mean.to(inputs.device), spread.to(inputs.device))
        outputs = torch.empty_like(inputs)
        for part, into in zip(inputs.split(AT_ONCE), outputs.split(AT_ONCE), strict=True):
            into.copy_((part.double() - there[0]) / there[1])
        return outputs

    return normalized


@functools.lru_cache(maxsize=4)  # every run of a study asks for the same ones
def _channels(name: str, samples: int | None, validation: float | None) -> tuple[Tensor, Tensor]:
    """Deviation and mean of each channel of the training inputs."""
    (x, _), _ = _split(*_part(name, "train", samples), validation)
    if not x.is_floating_point():
        raise SpiritlevelError(
            "The study's data.normalize needs inputs that are numbers with a mean, such as images. "
            f"{name!r} has inputs of type {_word(x.dtype)}. Leave it out."
        )
    others = [dim for dim in range(x.dim()) if dim != 1]
    spread, mean = torch.std_mean(x.double(), dim=others, correction=0, keepdim=True)
    return spread.where(spread > 0, 1.0), mean  # a channel that is constant is only moved


def _labels(y: Tensor, settings: RunSettings, num_classes: int) -> Tensor:
    """The labels that the run is trained on."""
    share, kind = settings.interventions.label_noise, settings.interventions.label_noise_kind
    if not share:
        return y
    generator = derived_generator(settings.seed, "labels")
    return changes.label_noise(y, share, num_classes, generator, kind=kind)


def _split(
    x: Tensor, y: Tensor, validation: float | None
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor] | None]:
    """The training part and the validation part, the same in every run."""
    if validation is None:
        return (x, y), None
    count = int(validation) if validation >= 1 else math.floor(validation * len(x) + 0.5)
    if not 0 < count < len(x):
        raise SpiritlevelError(
            "The study's data.validation must leave samples for both parts. Got "
            f"{brief(validation)} of {len(x)} samples, which is {count}."
        )
    order = torch.randperm(len(x), generator=derived_generator(0, "validation"))
    validated, trained = order[:count], order[count:]
    return (x[trained], y[trained]), (x[validated], y[validated])


def forget_data() -> None:
    """Read data again at the next run: a file may have other content by now, or another folder."""
    for kept in (_load, _part, _channels):
        kept.cache_clear()


def whole_test(test: str) -> str:
    """Which part of the test data is used: all of a file, the test part of a data set."""
    return "all" if test.lower().endswith(".npz") else "test"


@functools.lru_cache(maxsize=4)
def _load(name: str, split: str) -> tuple[Tensor, Tensor]:
    x, y = load(name, split)
    if y.is_floating_point() or y.dim() != 1:
        raise SpiritlevelError(
            f"The study's data must have one class label per sample. {name!r} ({split}) has "
            f"targets of shape {tuple(y.shape)} and type {_word(y.dtype)}."
        )
    return x, y


@functools.lru_cache(maxsize=4)
def _part(
    name: str, split: str, samples: int | None, key: str = "samples"
) -> tuple[Tensor, Tensor]:
    """So many samples, the same ones in every run; `key` is where a study says how many."""
    x, y = _load(name, split)
    if samples is None:
        return x, y
    if samples > len(x):
        raise SpiritlevelError(
            f"The study's data.{key} must be at most {len(x)}, which is all of {name!r}. "
            f"Got {samples}."
        )
    chosen = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:samples]
    return x[chosen], y[chosen]


def _word(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")
