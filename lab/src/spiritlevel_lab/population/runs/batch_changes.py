"""Interventions that change every batch anew; the test data are never changed."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import interventions as library
from ..settings.interventions import InterventionSettings
from .run_data import class_patches

# In the order in which they are done.
ON_BATCHES = ("leakage", "crop_flip", "crop", "auto_augment", "input_noise", "mixup")


def changed_batches(interventions: InterventionSettings) -> list[str]:
    """Which of them change every batch anew."""
    return [
        name
        for name in ON_BATCHES
        if getattr(interventions, name) and (name, interventions.leakage) != ("leakage", "class")
    ]


class BatchChanges:
    """What happens to every batch of a run."""

    def __init__(
        self, interventions: InterventionSettings, *, num_classes: int, generator: torch.Generator
    ) -> None:
        self._generator = generator
        names = changed_batches(interventions)
        self._changes = [_change(name, interventions, num_classes) for name in names]

    def __bool__(self) -> bool:
        return bool(self._changes)

    def __call__(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The batch as it is trained on."""
        for change in self._changes:
            x, y = change(x, y, self._generator)
        return x, y.to(x.dtype) if y.is_floating_point() else y  # mixed labels are shares


def _change(
    name: str, interventions: InterventionSettings, num_classes: int
) -> library.Augmentation:
    strength = getattr(interventions, name)
    if name == "leakage":
        patches = class_patches(interventions, num_classes)
        return lambda x, y, generator: (library.control_patch(x, patches, generator), y)
    if name == "input_noise":
        return lambda x, y, generator: (library.input_noise(x, strength, generator), y)
    if name == "mixup":
        return library.mixup(strength, num_classes=num_classes)
    if name in ("crop_flip", "crop"):
        return library.crop_flip(int(strength), flip=name == "crop_flip")
    return library.auto_augment(strength)
