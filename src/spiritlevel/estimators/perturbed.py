"""Loss and gradient at other weights than the network's own, over the whole data or a part."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from .. import _batches
from .._core import Cost, SpiritlevelError
from ..hygiene import full_precision
from ..losses import CrossEntropy
from ..surface import Place, Surface

Weights = dict[str, Tensor]  # by parameter name; those left out stay as they are
Score = Callable[[Tensor, Tensor], Tensor]  # outputs and targets to Σ over the batch, float64


@dataclasses.dataclass(frozen=True)
class Slope:
    """Mean loss and its gradient in the measured parameters, which is in float64."""

    loss: float
    gradient: Weights


class Perturbed:
    """The loss as a function of the weights; every point is one pass over the data."""

    def __init__(self, surface: Surface, *, chunk: int, gradient_chunk: int) -> None:
        """Samples that go through the network at a time, without and with a backward."""
        self.surface = surface
        self.chunk, self.gradient_chunk = chunk, gradient_chunk

    @property
    def weights(self) -> Weights:
        """The measured parameters as they are."""
        return {name: p.detach() for name, p in self.surface.parameters.items()}

    @functools.cached_property
    def here(self) -> Slope:
        """Loss and gradient at the network's own weights; worked out once."""
        return self.slope({})

    def losses(self, points: Sequence[Weights]) -> list[float]:
        """The mean loss at each point; all go through the network while a chunk is at hand."""
        return self.scores(points, self._loss_sums)

    def errors(self, points: Sequence[Weights]) -> list[float]:
        """The share of targets that the largest output misses, weighted as in the loss."""
        return self.scores(points, self._error_sums)

    def scores(self, points: Sequence[Weights], score: Score) -> list[float]:
        """Σ score / Σ weight over the data at each point."""
        surface = self.surface
        sums = torch.zeros(len(points) + 1, dtype=torch.float64, device=surface.device)
        with torch.no_grad(), full_precision(), surface.processes.together():
            for where, batch in surface.chunks(self.chunk):
                for i, point in enumerate(points):
                    outputs, targets = surface.outputs(batch, where=where, parameters=point)
                    sums[i] += score(outputs, targets)
                sums[-1] += surface.loss.weights(outputs, targets).double().sum()
        surface.processes.sum_(sums)
        return (sums[:-1] / sums[-1]).tolist()

    def slope(self, point: Weights, data: Sequence[tuple[Place, Any]] | None = None) -> Slope:
        """Loss and gradient at a point, over all data or over some batches of it."""
        surface = self.surface
        names = list(surface.parameters)
        at = self.weights | point
        total = torch.zeros(2, dtype=torch.float64, device=surface.device)
        sums = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in at.items()}
        parts = surface.chunks(self.gradient_chunk) if data is None else data
        with torch.enable_grad(), full_precision(), surface.processes.together():
            for where, batch in parts:
                leaves = {name: at[name].detach().requires_grad_() for name in names}
                outputs, targets = surface.outputs(batch, where=where, parameters=leaves)
                loss = surface.loss.values(outputs, targets).sum()
                found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
                surface.cost += Cost(backwards=_batches.num_samples(batch))
                for name, gradient in zip(names, found, strict=True):
                    if gradient is not None:
                        sums[name] += gradient
                with torch.no_grad():
                    values = surface.loss.values(outputs.detach().double(), targets)
                    weights = surface.loss.weights(outputs.detach(), targets).double()
                    total += torch.stack([values.sum().double(), weights.sum()])
        if data is None:
            surface.processes.sum_(total, *sums.values())
        weight = float(total[1])
        if weight == 0.0:
            raise SpiritlevelError(
                "The data must hold at least one target that counts. All samples of this part are "
                "ignored, masked or have class weight 0. Check ignore_index, the mask and the "
                "labels."
            )
        return Slope(
            float(total[0]) / weight, {name: value / weight for name, value in sums.items()}
        )

    def _loss_sums(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.surface.loss.values(outputs.double(), targets).sum()

    def _error_sums(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return cast(CrossEntropy, self.surface.loss).errors(outputs, targets).double().sum()
