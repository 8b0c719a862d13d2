"""How far the measures agree with each other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from spiritlevel.ground.errors import SpiritlevelError, require
from spiritlevel.pages.figures.style import COLUMN, PAGE, PRINT_FONT, new_axes, shown, title

from ...population.population import Population
from ...population.storage.store import Store
from ...statistics import spearman
from .columns import finished, pairs

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ONE_COLUMN = 9  # rows that fit into a paper's column
MOST_NUMBERS = 17  # rows whose cells are wide enough for a number
LONGEST_NAME = 28  # letters: a longer name leaves the cells no room


def agreement(
    study: Store | Population,
    measures: Sequence[str] | None = None,
    *,
    target: str = "gap",
    ax: Axes | None = None,
) -> Axes:
    """Spearman's ρ between all measures, and the target in the last row: which of them agree.

    Cells without a correlation (a constant measure, fewer than four runs) are grey.
    """
    population = finished(study)
    population.check("target", target, list(population.targets))
    chosen = list(population.measures if measures is None else measures)
    for name in chosen:
        population.check("measures", name, population.measures)
    if not chosen:
        raise SpiritlevelError("The 'measures' must name at least one measure. Got none.")
    names = [*chosen, target]
    columns = [population.column(name) for name in names]
    np = require("numpy", what="Drawing", extra="plots")
    cells = np.full((len(names), len(names)), np.nan)
    counts = []
    for i, one in enumerate(columns):
        for j, other in enumerate(columns):
            points = pairs(one, other)
            counts.append(len(points.x))
            cells[i, j] = spearman(points.x, points.y).value
    side = COLUMN if len(names) <= ONE_COLUMN else min(PAGE, 1.6 + 0.34 * len(names))
    ax = new_axes(ax, side, side * 0.92)
    _draw_cells(ax, cells, names, numbers=len(names) <= MOST_NUMBERS)
    low, high = min(counts), max(counts)
    title(ax, f"Spearman ρ, n = {low if low == high else f'{low} to {high}'} runs a cell")
    return ax


def _draw_cells(ax: Axes, cells: Any, names: Sequence[str], *, numbers: bool) -> None:
    import matplotlib

    colours = matplotlib.colormaps["RdBu_r"].with_extremes(bad="#DDDDDD")
    drawn = ax.imshow(cells, cmap=colours, vmin=-1, vmax=1)
    middle: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": PRINT_FONT - 1.5}
    if numbers:
        for i, row in enumerate(cells):
            for j, value in enumerate(row):
                ax.text(
                    j, i, _number(value), color="white" if abs(value) > 0.6 else "black", **middle
                )
    labels = [shown(name, LONGEST_NAME) for name in names]
    ax.set_xticks(range(len(names)), labels, rotation=90)
    ax.set_yticks(range(len(names)), labels)
    ax.tick_params(labelsize=PRINT_FONT - 1, length=0)
    ax.axhline(len(names) - 1.5, color="black", linewidth=0.8)
    ax.axvline(len(names) - 1.5, color="black", linewidth=0.8)
    bar = ax.figure.colorbar(drawn, ax=ax, shrink=0.7)
    bar.ax.tick_params(labelsize=PRINT_FONT - 1)


def _number(value: float) -> str:
    """Two digits and no leading zero: cells are small.

    >>> _number(-0.734), _number(-0.001), _number(1.0)
    ('-.73', '.00', '1.00')
    """
    return "–" if math.isnan(value) else f"{round(value, 2) + 0.0:.2f}".replace("0.", ".", 1)
