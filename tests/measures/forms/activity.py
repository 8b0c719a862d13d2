"""Activity of one linear layer, which has no rectifier: only the norms apply."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def forms(
    model: nn.Linear, x: Tensor, y: Tensor, loss: str, options: Any
) -> dict[str, Tensor | float | None]:
    """Every measure of the family that applies, by hand."""
    z = x @ model.weight.detach().T + model.bias.detach()
    if loss == "mse":
        signal = 2 * (z - y) / z.shape[1]
    else:
        signal = z.softmax(dim=1) - nn.functional.one_hot(y, z.shape[1])
    gradient = torch.cat([signal.T @ x, signal.sum(dim=0)[:, None]], dim=1) / len(x)
    return {
        "activity.activation_norm": x.square().sum(dim=1).mean().sqrt(),
        "activity.gradient_norm": gradient.norm(),
    }
