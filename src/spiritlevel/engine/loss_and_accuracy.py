"""How well a network does on the data it is measured on: its mean loss, and its accuracy."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..model.distributed import Processes
from ..model.losses import CrossEntropy
from ..model.losses.protocol import Loss
from ..reading import to_json_float


class LossAndAccuracy:
    """Sums of losses, of wrong predictions and of weights, taken along with another pass."""

    def __init__(self, loss: Loss, device: torch.device) -> None:
        self._loss = loss
        self._sums = torch.zeros(3, dtype=torch.float64, device=device)

    @torch.no_grad()
    def add(self, outputs: Tensor, targets: Tensor) -> None:
        """Count a batch."""
        loss = self._loss
        sums = [loss.values(outputs.double(), targets), loss.weights(outputs, targets)]
        if isinstance(loss, CrossEntropy):
            sums.insert(1, loss.errors(outputs, targets))
        else:
            sums.insert(1, torch.zeros_like(sums[1]))
        self._sums += torch.stack([each.double().sum() for each in sums])

    def reduce(self, processes: Processes) -> None:
        """Add up over all processes."""
        processes.sum_(self._sums)
        self._sums = self._sums.cpu()

    @property
    def mean_loss(self) -> float | None:
        """None where no batch was counted."""
        total, _, weight = self._sums.tolist()
        return total / weight if weight else None

    @property
    def accuracy(self) -> float | None:
        """The share of targets that are predicted; None where there are no classes."""
        _, wrong, weight = self._sums.tolist()
        return 1 - wrong / weight if weight and isinstance(self._loss, CrossEntropy) else None

    def to_dict(self) -> dict[str, Any]:
        """Loss and accuracy for a report; empty where no batch was counted."""
        if self.mean_loss is None:
            return {}
        return {"mean_loss": to_json_float(self.mean_loss), "accuracy": self.accuracy}
