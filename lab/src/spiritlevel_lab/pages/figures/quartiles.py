"""Medians and quartiles over runs: of a setting's values, layer by layer, and along training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from spiritlevel.ground.errors import SpiritlevelError, require, suggestion
from spiritlevel.ground.files import natural
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

from ...population.population import Population, numbers_of
from ...population.storage.store import Store
from .columns import EPOCH_WORDS, QUARTILES, axis_title, finished, num_runs, spans_decades
from .scatter import small_legend

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DASHES = ("-", "--", "-.", ":")


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


def training(
    study: Store | Population,
    columns: str | Sequence[str] = ("train_loss", "test_loss"),
    *,
    by: str | None = None,
    legend: bool = True,
    ax: Axes | None = None,
) -> Axes:
    """The median over runs at every epoch, and the band between the quartiles.

    A run that has ended keeps its last value, so that every epoch shows the same runs.

    Args:
        study: its store, or a `Population` read from it.
        columns: of train_loss, test_loss, train_accuracy and test_accuracy.
        by: a setting with a line for each of its values.
        legend: whether to name the lines.
        ax: where to draw; None makes a figure one column wide.
    """
    population = finished(study)
    chosen = [columns] if isinstance(columns, str) else list(columns)
    for column in chosen:
        population.check("columns", column, list(EPOCH_WORDS))
    trained = [i for i, row in enumerate(population.done) if population.epochs.get(row["run"])]
    if not trained:
        raise SpiritlevelError("The study's runs have no epochs: there is no training to draw.")
    with_epochs = set(trained)
    lengths = [len(population.epochs[population.done[i]["run"]]) for i in trained]
    groups = {"": trained} if by is None else population.groups(by)
    ax = new_axes(ax, COLUMN, 2.6)
    lowest, diverged = math.inf, 0
    for i, (value, members) in enumerate(groups.items()):
        here = [member for member in members if member in with_epochs]
        for j, column in enumerate(chosen):
            paths = _paths(population, here, column, max(lengths))
            diverged += len(here) - len(paths) if j == 0 else 0
            if not paths:
                continue
            named = [] if by is None else [shown(value)]
            named += [EPOCH_WORDS[column]] if len(chosen) > 1 or by is None else []
            look = style(j if by is None else i * len(chosen) + j)
            label = f"{', '.join(named)} (n = {len(paths)})"
            dashes = DASHES[(j if by is None else i) % len(DASHES)]
            lowest = min(lowest, _draw_band(ax, paths, label, look["color"], dashes))
    if 0 < lowest < math.inf and all(column.endswith("loss") for column in chosen):
        log_scale(ax, "y", decades=math.log10(ax.get_ylim()[1] / lowest))
    ax.set_xlabel("epoch")
    ax.set_ylabel(EPOCH_WORDS[chosen[0]] if len(chosen) == 1 else chosen[0].split("_")[1])
    tidy(ax, font=PRINT_FONT)
    if legend and lowest < math.inf:
        ax.legend(**small_legend(by))
    low, high = min(lengths), max(lengths)
    title(
        ax,
        "line: median of the runs; band: quartiles",
        f"runs end after {low} to {high} epochs and keep their last value" if low < high else "",
        f"{num_runs(diverged)} with losses that are not finite left out" if diverged else "",
    )
    return ax


def _paths(
    population: Population, members: Sequence[int], column: str, length: int
) -> list[list[float]]:
    """One path per run, all of one length; runs that diverged have none."""
    paths = []
    for member in members:
        path = list(
            map(float, numbers_of(population.epochs[population.done[member]["run"]], column))
        )
        if all(map(math.isfinite, path)):
            paths.append(path + [path[-1]] * (length - len(path)))
    return paths


def _draw_band(ax: Axes, paths: list[list[float]], label: str, colour: str, dashes: str) -> float:
    """The lowest value drawn."""
    np = require("numpy", what="Drawing", extra="plots")
    low, middle, high = np.quantile(paths, QUARTILES, axis=0)
    epochs = range(1, len(middle) + 1)
    ax.fill_between(epochs, low, high, color=colour, alpha=0.18, linewidth=0)
    ax.plot(epochs, middle, dashes, color=colour, linewidth=1.2, label=label)
    return float(low.min())
