"""Interventions on training data, found by name when a run needs them.

`label_noise` changes the labels once, before training. The others change every batch anew, in the
order in which they stand here. The test data and what is measured on are never changed by those.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .._core import SpiritlevelError
from .keys import check_keys

ON_BATCHES = ("crop_flip", "auto_augment", "input_noise", "mixup")
KNOWN = ("label_noise", *ON_BATCHES)
NAMED = ("auto_augment",)  # by the name of a policy; the others by a number


def check_interventions(given: Mapping[str, Any]) -> None:
    """Refuse an unknown name, and a strength of the wrong kind; 0 or false leaves one out."""
    check_keys("interventions", given, KNOWN)
    for name, strength in given.items():
        if strength is False or strength is None:
            continue
        if name in NAMED and isinstance(strength, str):
            continue
        is_number = isinstance(strength, int | float) and not isinstance(strength, bool)
        if name in NAMED or not is_number or not strength >= 0:
            need = "the name of a policy" if name in NAMED else "a number of at least 0"
            raise SpiritlevelError(
                f"The study's interventions.{name} must be {need}, or false. Got {strength!r}."
            )


def on_labels(
    y: Tensor, interventions: Mapping[str, Any], *, num_classes: int, generator: torch.Generator
) -> Tensor:
    """The labels that the run is trained on."""
    share = interventions.get("label_noise")
    return _find("label_noise")(y, share, num_classes, generator) if share else y


class BatchChanges:
    """What happens to every batch of a run."""

    def __init__(
        self, interventions: Mapping[str, Any], *, num_classes: int, generator: torch.Generator
    ) -> None:
        self._generator = generator
        self._changes = [
            _change(name, interventions[name], num_classes)
            for name in ON_BATCHES
            if interventions.get(name)
        ]

    def __bool__(self) -> bool:
        return bool(self._changes)

    def __call__(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The batch as it is trained on."""
        for change in self._changes:
            x, y = change(x, y, self._generator)
        return x, y.to(x.dtype) if y.is_floating_point() else y  # mixed labels are shares


def _change(name: str, strength: Any, num_classes: int) -> Any:
    found = _find(name)
    if name == "input_noise":
        return lambda x, y, generator: (found(x, strength, generator), y)
    if name == "mixup":
        return found(strength, num_classes=num_classes)
    return found(int(strength) if name == "crop_flip" else strength)


def _find(name: str) -> Any:
    package = __name__.split(".")[0]
    return getattr(importlib.import_module(f"{package}.interventions"), name)
