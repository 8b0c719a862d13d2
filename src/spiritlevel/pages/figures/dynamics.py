"""How training went, over all runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...errors import SpiritlevelError, require
from ...study.population import Population, numbers_of
from ...study.storage.store import Store
from .columns import EPOCH_WORDS, QUARTILES, finished, num_runs
from .scatter import small_legend
from .style import COLUMN, PRINT_FONT, log_scale, new_axes, shown, style, tidy, title

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DASHES = ("-", "--", "-.", ":")


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
