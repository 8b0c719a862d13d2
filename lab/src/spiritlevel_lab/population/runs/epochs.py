"""The epochs of a run's training: the order of its samples, its batches, and the steps on them.

Some interventions change every batch anew; the test data are never changed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from .. import interventions as changes
from ..settings.sections import InterventionSettings
from .networks import NetworkRun
from .run_data import class_patches, derived_generator
from .steps import Steps


class Epochs:
    """What a run is trained with; every epoch goes through all of its data in another order."""

    def __init__(self, run: NetworkRun, *, may_record: bool = True) -> None:
        settings = run.settings
        self._model, self._data = run.model, run.data
        self._size = settings.training.batch_size
        self.num_batches = math.ceil(len(run.data.x) / self._size)
        self.step = Steps(run, steps_an_epoch=self.num_batches, may_record=may_record)
        self._shuffling = derived_generator(settings.seed, "shuffling")
        self._changing = derived_generator(settings.seed, "batches")
        self._change = BatchChanges(
            settings.interventions, num_classes=run.data.num_classes, generator=self._changing
        )

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of one epoch, with the changes that the study asks for."""
        x, y = self._data.x, self._data.y
        order = torch.randperm(len(x), generator=self._shuffling).to(x.device)
        for batch in order.split(self._size):
            yield self._change(x[batch], y[batch])

    def state(self) -> dict[str, Any]:
        """All that the next epochs depend on besides settings and data: tensors, plain values."""
        return {
            "network": dict(self._model.state_dict()),
            "buffers": dict(self._model.named_buffers()),  # also those that are not in there
            "steps": self.step.state(),
            "shuffling": self._shuffling.get_state(),
            "changing": self._changing.get_state(),
            **random_states(self._data.x.device),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on after the epoch at which this was the state."""
        self._model.load_state_dict(state["network"])
        with torch.no_grad():
            for name, buffer in self._model.named_buffers():
                buffer.copy_(state["buffers"][name])
        self.step.restore(state["steps"])
        self._shuffling.set_state(state["shuffling"])
        self._changing.set_state(state["changing"])
        restore_random_states(state, self._data.x.device)


def random_states(place: torch.device) -> dict[str, Tensor | None]:
    """The states of torch's own generators, which dropout draws from."""
    on_gpu = place.type == "cuda"
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(place) if on_gpu else None,
    }


def restore_random_states(states: Mapping[str, Any], place: torch.device) -> None:
    """Let torch draw on from these states."""
    torch.set_rng_state(states["torch"])
    if states["cuda"] is not None:
        torch.cuda.set_rng_state(states["cuda"], place)


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
) -> changes.Augmentation:
    strength = getattr(interventions, name)
    if name == "leakage":
        patches = class_patches(interventions, num_classes)
        return lambda x, y, generator: (changes.control_patch(x, patches, generator), y)
    if name == "input_noise":
        return lambda x, y, generator: (changes.input_noise(x, strength, generator), y)
    if name == "mixup":
        return changes.mixup(strength, num_classes=num_classes)
    if name in ("crop_flip", "crop"):
        return changes.crop_flip(int(strength), flip=name == "crop_flip")
    return changes.auto_augment(strength)
