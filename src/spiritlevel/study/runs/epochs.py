"""The epochs of a run's training: the order of its samples, its batches, and the steps on them."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from .batch_changes import BatchChanges
from .network_run import NetworkRun
from .run_data import derived_generator
from .steps import Steps


class Epochs:
    """What a run is trained with; every epoch goes through all of its data in another order."""

    def __init__(self, run: NetworkRun, *, may_record: bool = True) -> None:
        settings = run.settings
        self._data, self._size = run.data, settings.training.batch_size
        self.num_batches = math.ceil(len(run.data.x) / self._size)
        self.step = Steps(run, steps_an_epoch=self.num_batches, may_record=may_record)
        self._generator = derived_generator(settings.seed, "shuffling")
        self._change = BatchChanges(
            settings.interventions,
            num_classes=run.data.num_classes,
            generator=derived_generator(settings.seed, "batches"),
        )

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Those of one epoch, as they are trained on."""
        x, y = self._data.x, self._data.y
        order = torch.randperm(len(x), generator=self._generator).to(x.device)
        for batch in order.split(self._size):
            yield self._change(x[batch], y[batch])
