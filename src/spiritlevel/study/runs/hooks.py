"""Interventions: what a study may do on purpose to labels, inputs, batches, steps and networks.

`label_noise` and `leakage` change the training data once. Those of `ON_BATCHES` change every batch
anew, in the order in which they stand there. The test data are never changed. `mask` and
`bias_shift` change the network before training, `batch_cycles` the steps of training.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ...errors import SpiritlevelError
from .. import interventions as library
from ..data import load
from ..settings.keys import Field, as_mapping, check_keys, number, one_of, text


def _strength() -> Field:
    return number(float, None, "a number of at least 0, or false", lambda v: v >= 0)


def _pixels() -> Field:
    # A float although it is whole: the ids of older runs were made with 4.0.
    need = "a whole number of pixels of at least 0, or false"
    return number(float, None, need, lambda v: v >= 0 and v.is_integer())


FIELDS: dict[str, Field] = {
    "label_noise": _strength(),
    "label_noise_kind": one_of("replace", "shuffle", default="replace"),
    "leakage": one_of("class", "control", default=None),
    "leakage_patches": text("the name or path of the images that the patches are made of"),
    "leakage_size": number(int, None, "a whole number of at least 1", lambda v: v >= 1),
    "crop_flip": _pixels(),
    "crop": _pixels(),
    "auto_augment": text("the name of a policy, or false"),
    "input_noise": _strength(),
    "mixup": _strength(),
    "mask": number(float, None, "a number from 0 to below 1, or false", lambda v: 0 <= v < 1),
    "mask_layers": text("a name or pattern of layers"),
    "bias_shift": number(float, None, "a number, or false", math.isfinite),
    "bias_layer": text("the name of a layer"),
    "batch_cycles": number(int, None, "a whole number of at least 1, or false", lambda v: v >= 1),
}
KNOWN = tuple(FIELDS)
ON_BATCHES = ("leakage", "crop_flip", "crop", "auto_augment", "input_noise", "mixup")
ON_NETWORKS = ("mask", "mask_layers", "bias_shift", "bias_layer")
COMPANIONS = {
    "label_noise_kind": "label_noise",
    "leakage_patches": "leakage",
    "leakage_size": "leakage",
    "mask_layers": "mask",
    "bias_layer": "bias_shift",
}
PATCHES, PATCH_SIZE = "digits", 8  # those of the package; paper 001 has MNIST's at this size


def read_interventions(given: object) -> dict[str, Any]:
    """Every strength checked; one that is left out by 0 or false is as one that is not named."""
    values = as_mapping("interventions", given)
    check_keys("interventions", values, KNOWN)
    found = {
        name: FIELDS[name].read(f"interventions.{name}", value)
        for name, value in values.items()
        if value is not None and value is not False and not _is_zero(value)
    }
    for name, usual in (("batch_cycles", 1), ("label_noise_kind", "replace")):
        if found.get(name) == usual:
            del found[name]
    for name, main in COMPANIONS.items():
        if name in found and main not in values:
            raise SpiritlevelError(
                f"The study's interventions.{name} says nothing without interventions.{main}. "
                f"Add {main}, or leave {name} out."
            )
        if name in found and main not in found:
            del found[name]
    if {"crop", "crop_flip"} <= set(found):
        raise SpiritlevelError(
            "The study's interventions.crop moves images as interventions.crop_flip does, which "
            f"mirrors them too. Got both, {found['crop']:g} and {found['crop_flip']:g}: leave one "
            "out."
        )
    return found


def _is_zero(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == 0


def changed_batches(interventions: Mapping[str, Any]) -> list[str]:
    """Which of them change every batch anew."""
    return [
        name
        for name in ON_BATCHES
        if interventions.get(name) and (name, interventions[name]) != ("leakage", "class")
    ]


def on_labels(
    y: Tensor, interventions: Mapping[str, Any], *, num_classes: int, generator: torch.Generator
) -> Tensor:
    """The labels that the run is trained on."""
    share = interventions.get("label_noise")
    if not share:
        return y
    kind = interventions.get("label_noise_kind", "replace")
    return library.label_noise(y, share, num_classes, generator, kind=kind)


def on_inputs(
    x: Tensor,
    y: Tensor,
    interventions: Mapping[str, Any],
    *,
    num_classes: int,
    generator: torch.Generator,
) -> Tensor:
    """The training inputs with the patch of their class, or of any class in the control group.

    The control group's patches here are what is evaluated and measured on; in training each batch
    gets others in the same place.
    """
    kind = interventions.get("leakage")
    if not kind:
        return x
    patches = _patches(interventions, num_classes)
    if kind == "class":
        return library.leakage_patch(x, y, patches)
    return library.control_patch(x, patches, generator)


def _patches(interventions: Mapping[str, Any], num_classes: int) -> Tensor:
    images, labels = load(interventions.get("leakage_patches", PATCHES), "train")
    size = interventions.get("leakage_size", PATCH_SIZE)
    return library.class_patches(images, labels, num_classes, size=size)


class BatchChanges:
    """What happens to every batch of a run."""

    def __init__(
        self, interventions: Mapping[str, Any], *, num_classes: int, generator: torch.Generator
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


def _change(name: str, interventions: Mapping[str, Any], num_classes: int) -> library.Augmentation:
    strength = interventions[name]
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
