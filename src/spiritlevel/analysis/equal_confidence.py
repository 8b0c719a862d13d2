"""Networks at equal confidence: logits scaled until the mean Gini impurity is the same.

Every curvature of cross-entropy falls as a network becomes more certain. What remains of a
difference between two networks when both are equally certain is not explained by that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..engine.workspace import STREAM_FROM
from ..errors import SpiritlevelError, brief
from ..math.curvature import SoftmaxCurvature
from ..measures.setup import Setup
from ..measures.verb import measuring
from ..model.losses import CrossEntropy
from ..symmetries import temperature_move

HALVINGS = 60  # of the interval of temperatures: enough for the last digit
SMALLEST = 1e-6  # the lowest temperature tried: predictions are then uniform


@dataclasses.dataclass(frozen=True)
class Logits:
    """One row of logits per target that counts, with its weight in the loss."""

    rows: Tensor
    weights: Tensor

    def gini(self, temperature: float) -> float:
        """Mean Gini impurity of the predictions if all logits are multiplied by this."""
        ones = torch.ones_like(self.weights)
        impurities = SoftmaxCurvature(temperature * self.rows, ones).gini()
        return float((impurities * self.weights).sum() / self.weights.sum())

    def temperature(self, gini: float) -> float:
        """The factor of at most 1 that raises the impurity to this value."""
        low, high = SMALLEST, 1.0
        for _ in range(HALVINGS):
            middle = (low * high) ** 0.5
            low, high = (low, middle) if self.gini(middle) < gini else (middle, high)
        return (low * high) ** 0.5


@measuring()
def equally_confident(
    setup: Setup, models: Mapping[str, nn.Module], data: Iterable[Any]
) -> dict[str, nn.Module]:
    """Copies whose heads are scaled so that all are as uncertain as the least certain one.

    Raises SpiritlevelError where a network has no head to scale.
    """
    heads = {name: _logits(setup, model, data) for name, model in models.items()}
    target = max(logits.gini(1.0) for _, logits in heads.values())
    return {
        name: temperature_move(models[name], head).at(models[name], logits.temperature(target))
        for name, (head, logits) in heads.items()
    }


def _logits(setup: Setup, model: nn.Module, data: Iterable[Any]) -> tuple[str, Logits]:
    """The path of the head, and its logits."""
    workspace = setup.whole().workspace(model, data)
    surface = workspace.surface
    if not isinstance(surface.loss, CrossEntropy):
        raise SpiritlevelError(
            "Equal confidence needs the loss 'cross_entropy', which has class probabilities. Got "
            f"{brief(surface.loss.name)}."
        )
    loss = surface.loss
    with surface.preserved(), torch.no_grad():
        head = workspace.head
        if head.shared or len(head.weight()) >= STREAM_FROM:
            raise SpiritlevelError(
                f"Equal confidence needs a head of its own with fewer than {STREAM_FROM} classes. "
                f"{head.layer!r} has {len(head.weight())} and is "
                f"{'shared' if head.shared else 'not shared'} with other layers."
            )
        rows, weights = [], []
        for where, batch in surface.chunks(
            workspace.plan.footprint.chunk(workspace.memory, sweep=False)
        ):
            outputs, targets = surface.outputs(batch, where=where)
            positions = loss.positions(outputs, targets)
            each = positions.rows(outputs.double())
            rows.append(each.cpu())
            weights.append(loss.row_weights(each, loss.row_targets(targets, positions)).cpu())
    return head.layer, Logits(torch.cat(rows), torch.cat(weights))
