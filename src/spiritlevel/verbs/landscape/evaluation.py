"""The height of the loss surface at weights other than the network's."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from ...engine.weight_space.perturbed import Weights, refuse_unless_counted
from ...model.arithmetic import full_precision
from ...model.losses import CrossEntropy
from ...model.surface import Surface


@dataclasses.dataclass(frozen=True)
class Height:
    """Mean loss, and the share of missed targets where the loss is a cross-entropy."""

    loss: float
    error: float | None


def heights(surface: Surface, points: Sequence[Weights], *, chunk: int) -> list[Height]:
    """The height at each point, from one pass over the data.

    Unlike in `PerturbedLoss.losses`, an overflow is not replaced: a picture has a gap there.
    A sample whose outputs are not finite misses its target.
    """
    sums = torch.zeros(3, len(points), dtype=torch.float64, device=surface.device)
    loss = surface.loss
    with torch.no_grad(), full_precision(), surface.processes.together():
        for where, batch in surface.chunks(chunk):
            for i, point in enumerate(points):
                outputs, targets = surface.outputs(
                    batch, where=where, parameters=point, may_overflow=bool(point)
                )
                weights = loss.weights(outputs, targets).double()
                sums[0, i] += loss.values(outputs.double(), targets).sum()
                sums[1, i] += weights.sum()
                if isinstance(loss, CrossEntropy):
                    whole = outputs.isfinite().reshape(len(outputs), -1).all(dim=1)
                    missed = loss.errors(outputs.nan_to_num(), targets).double()
                    sums[2, i] += missed.where(whole, weights).sum()
    surface.processes.sum_(sums)
    total, weight, missed = sums.tolist()
    refuse_unless_counted(all(weight))
    counts = isinstance(loss, CrossEntropy)
    return [
        Height(a / w, m / w if counts else None)
        for a, w, m in zip(total, weight, missed, strict=True)
    ]
