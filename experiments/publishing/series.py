"""A figure as SVG: the same figure gives the same bytes."""

from __future__ import annotations

import dataclasses
import math
import textwrap
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from spiritlevel.math.kde import GaussianMixture, scott
from spiritlevel.pages.figures.style import FONT, log_scale, new_figure, save, style, tidy
from spiritlevel.records.content import Figure, Panels, Series, fitted_line

WHOLE, PANEL = (6.0, 3.6), (3.1, 2.5)  # inches, of a figure alone in its row and beside others
FEW, ROW = 3, 0.18  # lines of a legend that a figure has room for, and inches of each further one
COLUMNS = 2  # of the legend
MARGIN = 0.3  # inches at the ends of a side that a label leaves free
LETTERS = 13  # of a label in an inch
MANY = 50  # places of a curve, which needs no marks
SHARES = (0.25, 0.5, 0.75, 0.95)  # of the highest density, where the contours lie
GRID, BEYOND = 60, 0.35  # points of a density either way, and how far they go beyond the marks
FEWEST = 4  # marks that have a density


def svg(figure: Figure | Panels) -> bytes:
    """Lines or points with their intervals, named in a legend; panels row by row."""
    if isinstance(figure, Figure):
        figure = Panels([dataclasses.replace(figure, title="")], columns=1)
    width, height = WHOLE if figure.columns == 1 else PANEL
    rows = math.ceil(len(figure.figures) / figure.columns)
    heights = [height] * rows
    for place, each in enumerate(figure.figures):
        needed = height + ROW * max(0, _legend_lines(each) - FEW)
        heights[place // figure.columns] = max(heights[place // figure.columns], needed)
    page = new_figure(width * figure.columns, sum(heights))
    grid = page.add_gridspec(rows, figure.columns, height_ratios=heights)
    for place, each in enumerate(figure.figures):
        ax = page.add_subplot(grid[place // figure.columns, place % figure.columns])
        _draw_figure(ax, each, title=each.title)
        ax.set_xlabel(_wrapped(each.x_label, width), fontsize=FONT)
        ax.set_ylabel(_wrapped(each.y_label, height), fontsize=FONT)
    return save(page, "svg")


def _wrapped(label: str, inches: float) -> str:
    """In several lines where it would be longer than the side of the figure it stands on."""
    return "\n".join(textwrap.wrap(label, round(LETTERS * (inches - MARGIN))))


def _draw_figure(ax: Any, figure: Figure, *, title: str = "") -> None:
    """Draw a figure into one pair of axes; a title stands above the legend."""
    for index, series in enumerate(figure.series):
        if figure.density:
            draw_contours(ax, series, index, log_x=figure.log_x, log_y=figure.log_y)
        _draw(ax, series, index, joined=not figure.points)
        line = fitted_line(series.x, series.y, log_x=figure.log_x) if figure.fitted else None
        if line is not None:
            ax.plot(*line, color=style(index)["color"], linewidth=1.2)
    if figure.log_x:
        _log_scale(ax, "x", [x for series in figure.series for x in series.x])
    if figure.log_y:
        ends = (each for s in figure.series for each in (s.y, s.low, s.high) if each is not None)
        _log_scale(ax, "y", [value for each in ends for value in each])
    tidy(ax)
    if len(figure.series) > 1:
        ax.legend(  # above the axes: inside it would lie on points
            frameon=False,
            fontsize=FONT - 1,
            loc="lower left",
            bbox_to_anchor=(0.0, 1.0),
            ncols=COLUMNS,
            title=_as_text(figure.names) or None,
            title_fontsize=FONT - 1,
            alignment="left",
        )
    if title:
        lines = _legend_lines(figure)
        room = 12 * lines + 8 if lines else 4  # points
        ax.set_title(_as_text(title), fontsize=FONT, loc="left", pad=room)


def _legend_lines(figure: Figure) -> int:
    """How many lines the legend takes, with its heading; none for a single series."""
    if len(figure.series) < 2:
        return 0
    return bool(figure.names) + math.ceil(len(figure.series) / COLUMNS)


def _log_scale(ax: Any, axis: str, values: Sequence[float]) -> None:
    shown = [value for value in values if value > 0]
    decades = math.log10(max(shown) / min(shown)) if shown else 0.0
    log_scale(ax, axis, decades=decades)


def _draw(ax: Any, series: Series, index: int, *, joined: bool) -> None:
    bars = None
    if series.low is not None and series.high is not None:
        below = [max(0.0, y - low) for y, low in zip(series.y, series.low, strict=True)]
        above = [max(0.0, high - y) for y, high in zip(series.y, series.high, strict=True)]
        bars = [below, above]
    ax.errorbar(
        series.x,
        series.y,
        yerr=bars,
        linestyle="-" if joined else "none",
        linewidth=1.3,
        markersize=0 if joined and len(series.x) > MANY else 8 if series.ring else 5,
        markerfacecolor="none" if series.ring else None,
        capsize=2.5,
        label=_as_text(series.name),
        **style(index),
    )


def _as_text(name: str) -> str:
    """A name with its dollars escaped: it is text, not mathematics."""
    return name.replace("$", r"\$")


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
    """Values in float64; on a logarithmic axis their logarithms to base 10."""
    return torch.tensor([math.log10(v) if log else v for v in values], dtype=torch.float64)


def _places(values: Tensor) -> Tensor:
    low, high = float(values.min()), float(values.max())
    room = BEYOND * (high - low)
    return torch.linspace(low - room, high + room, GRID, dtype=torch.float64)
