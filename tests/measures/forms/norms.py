"""Norms of one linear layer: its outputs W x + b are their own derivative along the weights."""

from __future__ import annotations

from typing import Any

import numpy
import torch
from torch import Tensor, nn


def forms(
    model: nn.Linear, x: Tensor, y: Tensor, loss: str, options: Any
) -> dict[str, Tensor | float | None]:
    """Every measure of the family that applies, by hand."""
    W, b = model.weight.detach(), model.bias.detach()
    start = options.initial
    start = start.state_dict() if isinstance(start, nn.Module) else start
    z = x @ W.T + b
    if loss == "mse":
        signal, curved = 2 * (z - y) / z.shape[1], 2 * z.square() / z.shape[1]
    else:
        p = z.softmax(dim=1)
        signal = p - nn.functional.one_hot(y, z.shape[1])
        curved = p * (z - (p * z).sum(dim=1, keepdim=True)).square()  # the variance of z under p
    slopes = (signal * z).sum(dim=1).square().mean()
    found: dict[str, Tensor | float | None] = {
        "norms.weight": torch.cat([W.flatten(), b]).norm(),
        "norms.fisher_rao": slopes,
        "norms.fisher_rao_closed": slopes,  # degree 1: a bias alone is no obstacle in one layer
        "norms.fisher_rao_model": curved.sum(dim=1).mean(),
    }
    if start is not None:
        moved = [(W - start["weight"]).flatten(), b - start["bias"]]
        found["norms.distance"] = torch.cat(moved).norm()
    if loss == "cross_entropy":
        margins = [
            float(row[label]) - max(float(v) for j, v in enumerate(row) if j != label)
            for row, label in zip(z, y.tolist(), strict=True)
        ]
        found["norms.margin"] = float(numpy.quantile(margins, 0.1))
        found["norms.margin_mean"] = sum(margins) / len(margins)
    return found
