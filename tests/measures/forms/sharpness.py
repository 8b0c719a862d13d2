"""Closed forms of the sharpness family on one linear layer.

With squared error the loss is quadratic, so the worst case is a trust-region problem and the
average is half a trace. With cross-entropy the noisy scores of a sample are independent normal
numbers, so the average is a Gaussian integral; the worst case has no closed form.
"""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import numpy as np
import torch
from scipy.optimize import brentq
from torch import Tensor, nn

NODES = 24  # of Gauss-Hermite in each dimension: seven digits and more for noise of size 1


def highest_in_ball(H: Tensor, g: Tensor, radius: float) -> float:
    """max g'e + e'He/2 over |e| <= radius, by all eigenvalues and the secular equation."""
    values, vectors = np.linalg.eigh(H.numpy())
    along = vectors.T @ g.numpy()

    def length(multiplier):
        return np.linalg.norm(along / (multiplier - values))

    top = values[-1]
    if top < 0 and length(0.0) <= radius:
        e = along / -values
    else:
        low = max(top, 0.0)
        start = low + 1e-14 * max(abs(top), 1e-3)
        if length(start) <= radius:  # the gradient does not reach the top eigenvector
            rest = np.where(np.isclose(values, top), 0.0, along / (start - values + 1e-300))
            e = rest
            e[-1] = math.sqrt(max(radius**2 - np.linalg.norm(rest) ** 2, 0.0))
        else:
            end = low + np.linalg.norm(along) / radius + 1.0
            e = along / (brentq(lambda m: length(m) - radius, start, end, xtol=1e-15) - values)
            e *= radius / np.linalg.norm(e)
    return float(along @ e + e @ (values * e) / 2)


def squared_error(model: nn.Linear, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Hessian and gradient in (weight, bias): the bias sees an input of 1, last in each row."""
    inputs = torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], dim=1)
    outputs = y.shape[1]
    H = torch.kron(torch.eye(outputs, dtype=x.dtype), inputs.T @ inputs) * 2 / (outputs * len(x))
    residual = model(x).detach() - y
    g = 2 * (residual.T @ inputs) / (outputs * len(x))
    return H, g.flatten()


def sizes(model: nn.Linear) -> Tensor:
    """|theta| in the order of `squared_error`."""
    both = torch.cat([model.weight.detach(), model.bias.detach()[:, None]], dim=1)
    return both.abs().flatten()


def score_noise(model: nn.Linear, x: Tensor, *, relative: bool) -> Tensor:
    """Standard deviation of each score for noise of size 1 on every weight, shape (N, C)."""
    W, b = model.weight.detach(), model.bias.detach()
    if relative:
        return (x.square() @ W.square().T + b.square()).sqrt()
    return (x.square().sum(dim=1, keepdim=True) + 1).sqrt().expand(-1, len(W))


@functools.cache
def _gauss_hermite(dimensions: int) -> tuple[Tensor, Tensor]:
    """Points and weights, shapes (points, dimensions) and (points,)."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
    weights = weights / weights.sum()
    grid = torch.tensor(list(itertools.product(nodes, repeat=dimensions)))
    mass = torch.tensor(list(itertools.product(weights, repeat=dimensions))).prod(dim=1)
    return grid, mass


def mean_rise_of_cross_entropy(model: nn.Linear, x: Tensor, spread: Tensor) -> float:
    """E log sum exp of noisy scores less that of the scores; the target's own averages out."""
    z = model(x).detach()
    grid, mass = _gauss_hermite(z.shape[1])
    noisy = (z[:, None] + spread[:, None] * grid).logsumexp(dim=2) @ mass
    return float((noisy - z.logsumexp(dim=1)).mean())


def forms(
    model: nn.Linear, x: Tensor, y: Tensor, loss: str, options: Any
) -> dict[str, Tensor | float | None]:
    worst = {"worst": None, "adaptive": None, "m_worst": None, "adaptive_m_worst": None}
    if loss == "mse":
        size = sizes(model)
        cuts = [slice(i, i + options.m) for i in range(0, len(x), options.m)]
        groups = [(len(x[cut]), *squared_error(model, x[cut], y[cut])) for cut in cuts]
        H, g = squared_error(model, x, y)

        def mean(rises):
            return sum(n * rise for (n, _, _), rise in zip(groups, rises, strict=True)) / len(x)

        def adaptive(H, g):
            return highest_in_ball(size[:, None] * H * size, size * g, options.adaptive_rho)

        worst = {
            "worst": highest_in_ball(H, g, options.rho),
            "adaptive": adaptive(H, g),
            "m_worst": mean([highest_in_ball(H, g, options.rho) for _, H, g in groups]),
            "adaptive_m_worst": mean([adaptive(H, g) for _, H, g in groups]),
        }
        average = options.sigma**2 * H.trace() / 2
        adaptive_average = options.adaptive_sigma**2 * (size.square() * H.diagonal()).sum() / 2
    else:
        spread = options.sigma * score_noise(model, x, relative=False)
        average = mean_rise_of_cross_entropy(model, x, spread)
        spread = options.adaptive_sigma * score_noise(model, x, relative=True)
        adaptive_average = mean_rise_of_cross_entropy(model, x, spread)
    found = worst | {"average": average, "adaptive_average": adaptive_average}
    return {f"sharpness.{variant}": value for variant, value in found.items()}
