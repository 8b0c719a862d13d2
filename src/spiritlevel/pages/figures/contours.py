"""Where the marks of a series lie densely, as contours below them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...content import Series
from ...math.kde import GaussianMixture, scott
from .style import style

SHARES = (0.25, 0.5, 0.75, 0.95)  # of the highest density, where the contours lie
GRID, MARGIN = 60, 0.35  # points either way, and how far they go beyond the marks
FEWEST = 4  # marks that have a density


def draw_contours(
    ax: Any, series: Series, index: int, *, log_x: bool = False, log_y: bool = False
) -> None:
    """Contours of a Gaussian kernel density; nothing for few marks, or where they coincide."""
    x, y = _scaled(series.x, log_x), _scaled(series.y, log_y)
    if len(x) < FEWEST or min(float(x.std()), float(y.std())) == 0.0:
        return
    across, up = _places(x), _places(y)
    heights = joint_density(x, y, across, up)
    levels = [share * float(heights.max()) for share in SHARES]
    shown = [
        (10**places if log else places).tolist() for places, log in ((across, log_x), (up, log_y))
    ]
    ax.contour(
        *shown,
        heights.tolist(),
        levels=levels,
        colors=style(index)["color"],
        linewidths=0.7,
        alpha=0.6,
    )


def joint_density(x: Tensor, y: Tensor, across: Tensor, up: Tensor) -> Tensor:
    """A kernel density of the points (x, y) on a grid, shape (len(up), len(across)).

    Each coordinate counts in units of its standard deviation, with Scott's bandwidth.
    """
    spread = torch.stack([x.std(), y.std()])
    points = torch.stack([x, y], dim=1) / spread
    grid = torch.cartesian_prod(up, across).flip(1) / spread
    mixture = GaussianMixture(points, scott(points))
    return (mixture.log_density(grid).exp() / spread.prod()).reshape(len(up), len(across))


def _scaled(values: Sequence[float], log: bool) -> Tensor:
    """In float64; the logarithm to base 10 on a logarithmic axis."""
    return torch.tensor([math.log10(v) if log else v for v in values], dtype=torch.float64)


def _places(values: Tensor) -> Tensor:
    low, high = float(values.min()), float(values.max())
    room = MARGIN * (high - low)
    return torch.linspace(low - room, high + room, GRID, dtype=torch.float64)
