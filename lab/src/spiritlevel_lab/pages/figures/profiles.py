"""Where in the networks a measure comes from: layer by layer, over all runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from spiritlevel.ground.errors import SpiritlevelError, require, suggestion
from spiritlevel.ground.files import natural
from spiritlevel.pages.figures.style import (
    COLUMN,
    PRINT_FONT,
    log_scale,
    new_axes,
    shown,
    style,
    tick_names,
    tidy,
    title,
    y_label,
)

from ...population.population import Population
from ...population.storage.store import Store
from .columns import QUARTILES, finished, spans_decades
from .scatter import small_legend

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def layer_profile(
    study: Store | Population,
    measure: str,
    *,
    by: str | None = None,
    layers: Sequence[str] | None = None,
    legend: bool = True,
    ax: Axes | None = None,
) -> Axes:
    """A measure of each layer: the median over runs, and bars between the quartiles.

    Args:
        study: its store, or a `Population` read from it.
        measure: one that has layers.
        by: a setting with a line for each of its values.
        layers: in which order; None sorts them by name, since a store does not keep the model's.
        legend: whether to name the lines.
        ax: where to draw; None makes a figure one column wide.
    """
    population = finished(study)
    if measure not in population.layers:
        have = ", ".join(population.layers) or "none"
        raise SpiritlevelError(
            f"The study has no layers of {measure!r}.{suggestion(measure, population.layers)} "
            f"Measures with layers: {have}."
        )
    by_run = population.layers[measure]
    names_of_layers = sorted({name for of_run in by_run.values() for name in of_run}, key=natural)
    for name in layers or ():
        population.check("layers", name, names_of_layers)
    names = list(names_of_layers if layers is None else layers)
    np = require("numpy", what="Drawing", extra="plots")
    ax = new_axes(ax, COLUMN, 2.6)
    groups = {"": list(range(len(population.done)))} if by is None else population.groups(by)
    everything: list[float] = []
    for i, (value, members) in enumerate(groups.items()):
        ids = [population.done[member]["run"] for member in members]
        columns = [[by_run.get(run, {}).get(name, math.nan) for run in ids] for name in names]
        finite = [[v for v in column if math.isfinite(v)] for column in columns]
        seen = [k for k, column in enumerate(finite) if column]
        if not seen:
            continue
        low, middle, high = np.array([np.quantile(finite[k], QUARTILES) for k in seen]).T
        everything += [*low, *high]
        look = style(i)
        away = 0.3 * ((i + 0.5) / len(groups) - 0.5)
        label = f"{shown(value)} (n = {max(map(len, finite))})"
        ax.errorbar(
            [k + away for k in seen], middle, yerr=[middle - low, high - middle], label=label,
            linewidth=1, elinewidth=0.8, markersize=3, **look,  # type: ignore[arg-type]
        )  # fmt: skip
    if spans_decades(everything):
        log_scale(ax, "y", decades=math.log10(max(everything) / min(everything)))
    y_label(ax, measure)
    ax.set_xlabel("layer" if layers is not None else "layer, by name")
    tidy(ax, font=PRINT_FONT)
    tick_names(ax, [shown(name, 20) for name in names], font=PRINT_FONT - 1)
    if by is not None and legend:
        ax.legend(**small_legend(by))
    number = f"n = {len(by_run)}; " if by is None else ""
    title(ax, f"{number}median of the runs; bars: quartiles")
    return ax
