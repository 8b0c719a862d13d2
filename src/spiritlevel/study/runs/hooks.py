"""Interventions: what a study may do on purpose to labels, inputs, batches, steps and networks.

`label_noise` and `leakage` change the training data once. Those of `ON_BATCHES` change every batch
anew, in the order in which they stand there. The test data are never changed. `mask` and
`bias_shift` change the network before training, `batch_cycles` the steps of training.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .. import interventions as library
from ..data import load
from ..settings.interventions import InterventionSettings

ON_BATCHES = ("leakage", "crop_flip", "crop", "auto_augment", "input_noise", "mixup")
ON_NETWORKS = ("mask", "mask_layers", "bias_shift", "bias_layer")
PATCHES, PATCH_SIZE = "digits", 8  # those of the package; paper 001 has MNIST's at this size


def changed_batches(interventions: InterventionSettings) -> list[str]:
    """Which of them change every batch anew."""
    return [
        name
        for name in ON_BATCHES
        if getattr(interventions, name) and (name, interventions.leakage) != ("leakage", "class")
    ]


def on_labels(
    y: Tensor, interventions: InterventionSettings, *, num_classes: int, generator: torch.Generator
) -> Tensor:
    """The labels that the run is trained on."""
    if not interventions.label_noise:
        return y
    return library.label_noise(
        y,
        interventions.label_noise,
        num_classes,
        generator,
        kind=interventions.label_noise_kind,
    )


def on_inputs(
    x: Tensor,
    y: Tensor,
    interventions: InterventionSettings,
    *,
    num_classes: int,
    generator: torch.Generator,
) -> Tensor:
    """The training inputs with the patch of their class, or of any class in the control group.

    The control group's patches here are what is evaluated and measured on; in training each batch
    gets others in the same place.
    """
    if interventions.leakage is None:
        return x
    patches = _patches(interventions, num_classes)
    if interventions.leakage == "class":
        return library.leakage_patch(x, y, patches)
    return library.control_patch(x, patches, generator)


def _patches(interventions: InterventionSettings, num_classes: int) -> Tensor:
    images, labels = load(interventions.leakage_patches or PATCHES, "train")
    size = interventions.leakage_size or PATCH_SIZE
    return library.class_patches(images, labels, num_classes, size=size)


class BatchChanges:
    """What happens to every batch of a run."""

    def __init__(
        self, interventions: InterventionSettings, *, num_classes: int, generator: torch.Generator
    ) -> None:
        self._generator = generator
        self._changes = [
            _change(name, interventions, num_classes) for name in changed_batches(interventions)
        ]

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
        patches = _patches(interventions, num_classes)
        return lambda x, y, generator: (library.control_patch(x, patches, generator), y)
    if name == "input_noise":
        return lambda x, y, generator: (library.input_noise(x, strength, generator), y)
    if name == "mixup":
        return library.mixup(strength, num_classes=num_classes)
    if name in ("crop_flip", "crop"):
        return library.crop_flip(int(strength), flip=name == "crop_flip")
    return library.auto_augment(strength)
