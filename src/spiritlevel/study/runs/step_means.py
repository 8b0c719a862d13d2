"""What the steps of an epoch saw on average: their losses and gradients, for rules that end it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..settings.stop import StopSettings


@dataclasses.dataclass(frozen=True)
class EpochSteps:
    """Means over the batches of an epoch, each seen before its step; None where nobody asked."""

    running_loss: float | None = None
    gradient_norm: float | None = None  # of the mean gradient of all parameters
    head_gradient: float | None = None  # the largest entry of that of the head's weights


class StepMeans:
    """Adds up losses and gradients during an epoch, of one network or of several at once.

    The first dimension of every tensor is the network.

    Args:
        stops: of the networks; what none of them asks for is not added up.
        head: the path of the head.
    """

    def __init__(self, stops: Sequence[StopSettings], head: str) -> None:
        self._losses_wanted = any(stop.running_loss is not None for stop in stops)
        self._gradients_wanted = any(stop.of_gradients for stop in stops)
        self._head = f"{head}.weight"
        self._clear()

    def _clear(self) -> None:
        self._steps = 0
        self._loss: Tensor | None = None
        self._gradients: dict[str, Tensor] = {}

    @torch.no_grad()
    def add(self, losses: Tensor, gradients: Mapping[str, Tensor | None]) -> None:
        """One step: the mean loss of each network's batch, and its gradients by parameter."""
        self._steps += 1
        if self._losses_wanted:
            losses = losses.detach().double()
            self._loss = losses if self._loss is None else self._loss + losses
        if not self._gradients_wanted:
            return
        for name, gradient in gradients.items():
            if gradient is None:
                continue
            if name in self._gradients:
                self._gradients[name].add_(gradient)
            else:  # a copy: a recorded step writes its next gradient into the same memory
                self._gradients[name] = gradient.detach().clone()

    @torch.no_grad()
    def take(self, count: int) -> list[EpochSteps]:
        """The means of the epoch for each of `count` networks; the next epoch starts at nothing."""
        steps, losses = self._steps, self._loss
        sums = {name: each.double() for name, each in self._gradients.items()}
        columns: dict[str, list[float]] = {}
        if losses is not None:
            columns["running_loss"] = (losses / steps).tolist()
        if sums:
            squares = torch.stack([each.flatten(1).square().sum(1) for each in sums.values()])
            columns["gradient_norm"] = (squares.sum(0).sqrt() / steps).tolist()
        if self._head in sums:
            largest = sums[self._head].abs().flatten(1).amax(1)
            columns["head_gradient"] = (largest / steps).tolist()
        self._clear()
        rows = [
            dict(zip(columns, values, strict=True))
            for values in zip(*columns.values(), strict=True)
        ]
        return [EpochSteps(**row) for row in rows] or [EpochSteps()] * count
