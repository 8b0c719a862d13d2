"""All eigenvalues of a network's Hessian."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...engine.weight_space.density import SpectralDensity
from .style import COLOURS, FONT, new_figure, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def density(
    result: SpectralDensity, eigenvalues: Sequence[float] = (), *, ax: Axes | None = None
) -> Axes:
    """The density of eigenvalues on a log scale, with single eigenvalues as ticks below it."""
    if ax is None:
        ax = new_figure(6.0, 3.4).subplots()
    grid, height = (values.tolist() for values in result.curve(4000))
    floor = 0.1 / result.size / max(grid[1] - grid[0], 1e-300) / len(grid)  # below one eigenvalue
    shown = [max(h, floor) for h in height]
    ax.fill_between(grid, floor, shown, color=COLOURS[0], alpha=0.25, linewidth=0)
    ax.plot(grid, shown, color=COLOURS[0], linewidth=1.2)
    ax.set_yscale("log")
    ax.set_ylim(bottom=floor)
    if eigenvalues:
        ax.plot(
            list(eigenvalues),
            [0.02] * len(eigenvalues),
            linestyle="none",
            marker="|",
            markersize=12,
            color=COLOURS[1],
            transform=ax.get_xaxis_transform(),
            label="extreme eigenvalues",
        )
        ax.legend(frameon=False, fontsize=FONT)
    ax.set_xlabel("eigenvalue", fontsize=FONT)
    ax.set_ylabel("density", fontsize=FONT)
    tidy(ax)
    return ax
