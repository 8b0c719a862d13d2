"""Closed forms of the pac_bayes family on one linear layer: where a mean rise meets its limit."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy.optimize import brentq
from scipy.special import ndtr
from torch import Tensor, nn

from measures.forms.sharpness import mean_rise_of_cross_entropy, score_noise, sizes, squared_error

LARGEST = 30.0  # noise up to which a crossing is looked for


def mean_error(model: nn.Linear, x: Tensor, y: Tensor, spread: Tensor) -> float:
    """E of the share of samples whose own noisy score is not the largest, by quadrature."""
    t = np.linspace(-9, 9, 4001)
    density = np.exp(-(t**2) / 2)
    density /= density.sum()
    z, s = model(x).detach().numpy(), spread.numpy()
    hits = []
    for n, target in enumerate(y.tolist()):
        own = z[n, target] + s[n, target] * t
        below = [ndtr((own - z[n, c]) / s[n, c]) for c in range(z.shape[1]) if c != target]
        hits.append(density @ np.prod(below, axis=0))
    return 1.0 - float(np.mean(hits))


def forms(
    model: nn.Linear, x: Tensor, y: Tensor, loss: str, options: Any
) -> dict[str, Tensor | float | None]:
    if loss == "mse":
        H, _ = squared_error(model, x, y)
        aware = (sizes(model).square() * H.diagonal()).sum()
        sharpness = H.trace() / (2 * options.deviation)
        return {
            "pac_bayes.sigma": sharpness,
            "pac_bayes.magnitude": aware / (2 * options.deviation),
            "pac_bayes.bound": bound(model, len(x), sharpness),
        }
    found = {}
    wrong = (model(x).argmax(dim=1) != y).double().mean()
    for variant, relative in (("sigma", False), ("magnitude", True)):
        noise = score_noise(model, x, relative=relative)

        def excess(log_sigma, noise=noise):
            spread = np.exp(log_sigma) * noise
            if options.target == "loss":
                rise = mean_rise_of_cross_entropy(model, x, spread)
            else:
                rise = mean_error(model, x, y, spread) - float(wrong)
            return rise - options.deviation

        found[f"pac_bayes.{variant}"] = crossing(excess)
    sharpness = found["pac_bayes.sigma"]
    return found | {
        "pac_bayes.bound": None if sharpness is None else bound(model, len(x), sharpness)
    }


def bound(model: nn.Linear, samples: int, sharpness: Tensor) -> Tensor:
    """Of 1/σ², with the norm of weights and biases."""
    squares = torch.cat([p.detach().flatten() for p in model.parameters()]).norm() ** 2
    return squares * sharpness / 4 + torch.log(samples * sharpness.sqrt()) + 10


def crossing(excess) -> Tensor | None:
    """1/σ² where the rise first exceeds its limit; None where it does not."""
    grid = np.log(np.geomspace(0.03, LARGEST, 12))
    above = [excess(point) > 0 for point in grid]
    if True not in above:
        return None
    place = above.index(True)
    assert place > 0
    root = brentq(excess, grid[place - 1], grid[place], xtol=1e-9)
    return torch.tensor(np.exp(-2 * root))
