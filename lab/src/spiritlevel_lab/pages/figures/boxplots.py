"""Runs in boxes, one for each value of a setting."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from spiritlevel.pages.figures.style import (
    COLUMN,
    MOST_MARKS,
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
from .columns import axis_title, finished, num_runs, spans_decades
from .scatter import small_legend

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def boxes(
    study: Store | Population,
    column: str,
    by: str,
    *,
    split: str | None = None,
    legend: bool = True,
    ax: Axes | None = None,
) -> Axes:
    """One box for each value of a setting: median, quartiles, whiskers to 1.5 lengths, every run.

    Args:
        study: its store, or a `Population` read from it.
        column: a measure, a target or a number of the last epoch.
        by: the setting across, such as "optimizer".
        split: a second setting, such as "lr", with a colour for each of its values.
        legend: whether to name these colours.
        ax: where to draw; None makes a figure one column wide.
    """
    population = finished(study)
    values, across = population.column(column), population.groups(by)
    inner = {"": set(range(len(values)))}
    if split is not None:
        inner = {value: set(runs) for value, runs in population.groups(split).items()}
    finite = [value for value in values if math.isfinite(value)]
    ax = new_axes(ax, COLUMN, 2.6)
    width = 0.8 / len(inner)
    sizes: list[int] = []
    for i, (value, members) in enumerate(inner.items()):
        look = style(i)
        drawn, places = [], []
        for place, runs in enumerate(across.values()):
            here = [values[r] for r in runs if r in members and math.isfinite(values[r])]
            if here:
                drawn.append(here)
                places.append(place + width * (i - (len(inner) - 1) / 2))
        if drawn:
            sizes += map(len, drawn)
            _draw_boxes(ax, drawn, places, 0.75 * width, look)
            label = "" if split is None else shown(value)
            ax.plot([], [], look["marker"], color=look["color"], markersize=4, label=label)
    if spans_decades(finite):
        log_scale(ax, "y", decades=math.log10(max(finite) / min(finite)))
    counts = (sum(math.isfinite(values[r]) for r in runs) for runs in across.values())
    names = [f"{shown(value, 16)}\nn = {n}" for value, n in zip(across, counts, strict=True)]
    ax.set_xlim(-0.6, len(across) - 0.4)
    ax.set_xlabel(shown(by))
    y_label(ax, axis_title(column))
    tidy(ax, font=PRINT_FONT)
    ax.grid(False, axis="x")
    tick_names(ax, names, font=PRINT_FONT - 1)
    if split is not None and legend:
        ax.legend(**small_legend(split))
    out = len(values) - len(finite)
    title(
        ax,
        f"n = {_range(sizes)} runs a box" if split is not None and sizes else "",
        f"{num_runs(out)} without a finite number left out" if out else "",
    )
    return ax


def _draw_boxes(
    ax: Axes, groups: Sequence[Sequence[float]], places: Sequence[float], width: float, look: Any
) -> None:
    line = {"color": look["color"], "linewidth": 0.9}
    ax.boxplot(
        groups,
        positions=places,
        widths=width,
        showfliers=False,  # every run is drawn as a point
        manage_ticks=False,
        boxprops=line,
        whiskerprops=line,
        capprops=line,
        medianprops=line | {"linewidth": 1.8},
    )
    for group, place in zip(groups, places, strict=True):
        # Beside each other in their order, so that points of one height do not hide each other.
        step = width * 0.7 / len(group)
        across = [place + step * (k - (len(group) - 1) / 2) for k in range(len(group))]
        ax.plot(
            across,
            group,
            look["marker"],
            color=look["color"],
            markersize=2.2,
            alpha=0.6,
            markeredgewidth=0,
            rasterized=sum(map(len, groups)) > MOST_MARKS,
        )


def _range(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low} to {high}"
