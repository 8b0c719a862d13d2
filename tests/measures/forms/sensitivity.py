"""Closed forms of the sensitivity family on one linear layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def forms(
    model: nn.Linear, x: Tensor, y: Tensor, loss: str, options: Any
) -> dict[str, Tensor | float | None]:
    W = model.weight.detach()
    outputs, features = W.shape
    if loss == "mse":
        A = torch.eye(outputs, dtype=torch.float64).expand(len(x), -1, -1) * 2 / outputs
    else:
        p = model(x).detach().softmax(dim=1)
        A = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    blocks = [torch.kron(a, torch.outer(v, v)) for a, v in zip(A, x, strict=True)]
    top = torch.linalg.eigvalsh(torch.stack(blocks).mean(dim=0))[-1]
    kappa = sum(
        float(v.square().sum()) * float((W.T @ a @ W).trace()) for a, v in zip(A, x, strict=True)
    ) / len(x)
    prediction = options.delta**2 * kappa / (2 * features)
    return {
        "sensitivity.jacobian": W.norm(),  # the same for every sample
        # a quadratic loss has nothing beyond the second order
        "sensitivity.feature_robustness": prediction if loss == "mse" else None,
        "sensitivity.robustness_prediction": prediction,
        "sensitivity.robustness_bound": options.delta**2 / 2 * W.square().sum() * top,
    }
