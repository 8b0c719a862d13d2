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

    The first dimension of every tensor is the network. Sums stay where they are in memory, so that
    adding to them can be recorded as a CUDA graph.

    Args:
        stops: of the networks; what none of them asks for is not added up.
        head: the path of the head.
    """

    def __init__(self, stops: Sequence[StopSettings], head: str) -> None:
        self._loss_wanted = any(stop.running_loss is not None for stop in stops)
        self._norm_wanted = any(stop.gradient_norm is not None for stop in stops)
        self._head_wanted = any(stop.head_gradient is not None for stop in stops)
        self._head = f"{head}.weight"
        self.forget()

    def forget(self) -> None:
        """Start at nothing, with other networks."""
        self._loss: Tensor | None = None
        self._gradients: dict[str, Tensor] = {}

    @torch.no_grad()
    def add(self, losses: Tensor, gradients: Mapping[str, Tensor | None]) -> None:
        """One step: the mean loss of each network's batch, and its gradients by parameter."""
        if self._loss_wanted:
            if self._loss is None:
                self._loss = torch.zeros_like(losses, dtype=torch.float64)
            self._loss += losses.detach()
        for name, gradient in gradients.items():
            wanted = self._norm_wanted or (self._head_wanted and name == self._head)
            if gradient is None or not wanted:
                continue
            if name not in self._gradients:
                self._gradients[name] = torch.zeros_like(gradient)
            self._gradients[name] += gradient.detach()

    @torch.no_grad()
    def take(self, count: int, *, steps: int) -> list[EpochSteps]:
        """The means over `steps` for each of `count` networks; the next epoch starts at nothing."""
        sums = {name: each.double() for name, each in self._gradients.items()}
        columns: dict[str, list[float]] = {}
        if self._loss is not None:
            columns["running_loss"] = (self._loss / steps).tolist()
            self._loss.zero_()
        if sums and self._norm_wanted:
            squares = torch.stack([each.flatten(1).square().sum(1) for each in sums.values()])
            columns["gradient_norm"] = (squares.sum(0).sqrt() / steps).tolist()
        if self._head_wanted and self._head in sums:
            largest = sums[self._head].abs().flatten(1).amax(1)
            columns["head_gradient"] = (largest / steps).tolist()
        for each in self._gradients.values():
            each.zero_()
        rows = [
            dict(zip(columns, values, strict=True))
            for values in zip(*columns.values(), strict=True)
        ]
        return [EpochSteps(**row) for row in rows] or [EpochSteps()] * count
