"""One point per run: a measure against what it should predict, and the bound against the gap."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from spiritlevel.ground.errors import SpiritlevelError
from spiritlevel.pages.figures.style import (
    COLOURS,
    COLUMN,
    GREY,
    MOST_MARKS,
    PRINT_FONT,
    log_scale,
    new_axes,
    shown,
    style,
    tidy,
    title,
    y_label,
)
from spiritlevel.records.content import CorrelationCell, fitted_line

from ...population.population import Population
from ...population.population_statistics import judged_pair
from ...population.storage.store import Store
from ...statistics import Judged
from .columns import Pairs, axis_title, finished, pairs

if TYPE_CHECKING:
    from matplotlib.axes import Axes

View = Literal["linear", "log", "density"]
VIEWS: tuple[View, ...] = ("linear", "log", "density")
BOUND = "bound.generalization"


def measure_against(
    study: Store | Population,
    measure: str,
    *,
    target: str = "gap",
    view: View = "log",
    colour: str | None = None,
    legend: bool = True,
    judged: Judged | None = None,
    ax: Axes | None = None,
) -> Axes:
    """A measure across, the target upwards, one point per finished run.

    Args:
        study: its store, or a `Population` read from it.
        measure: its name.
        target: "gap" (test − training loss), "error_gap", "test_loss" or "test_error"; or an
            outcome that came with given networks.
        view: "linear", "log" (the measure's axis; what is not positive is left out and counted) or
            "density" (how many runs lie in a cell; the axis is logarithmic where all are positive).
        colour: a setting, such as "lr", whose values get a colour and a shape of their own, and a
            line by least squares where they have 4 runs or more.
        legend: whether to name these values.
        judged: the correlation with the interval that judges it, where it is known already.
        ax: where to draw; None makes a figure one column wide.
    """
    population = finished(study)
    population.check("measure", measure, population.measures)
    population.check("target", target, list(population.targets))
    population.check("view", view, VIEWS)
    x, y = population.column(measure), population.column(target)
    positive = all(value > 0 for value in pairs(x, y).x)
    logarithmic = view == "log" or (view == "density" and positive)
    points = pairs(x, y, log="x" if logarithmic else "")
    ax = new_axes(ax, COLUMN, 2.6)
    if view == "density":
        _cells(ax, points, logarithmic=logarithmic)
    else:
        _points(ax, points, population, colour, logarithmic=logarithmic)
        if colour is not None and legend and points.x:
            ax.legend(**small_legend(colour))
    if logarithmic and points.x:
        log_scale(ax, "x", decades=math.log10(max(points.x) / min(points.x)))
    ax.set_xlabel(shown(measure))
    y_label(ax, axis_title(target))
    tidy(ax, font=PRINT_FONT)
    judged = judged_pair(population, measure, target) if judged is None else judged
    title(ax, _correlation(judged, len(population.done)), points.text)
    return ax


def _correlation(judged: Judged, drawn: int) -> str:
    """Spearman's ρ of all runs that are judged, also of those that an axis leaves out."""
    if math.isnan(judged.value):
        return f"ρ undefined: {judged.reason}"
    cell = CorrelationCell(judged.value, judged.low, judged.high)
    of = f" of {judged.n} judged" if judged.n < drawn else ""
    return f"Spearman ρ {cell.shown}{of} {cell.interval or '(no interval)'}"


def bound(study: Store | Population, measure: str = BOUND, *, ax: Axes | None = None) -> Axes:
    """The bound on the gap against the gap itself: on or above the line it holds.

    Only the gap of the losses is drawn, since that is what the theorem speaks of.
    """
    population = finished(study)
    if measure not in population.measures:
        raise SpiritlevelError(
            f"This study has no {measure!r}, so there is no bound to draw. Add it to the study's "
            "measures and run it."
        )
    gaps, bounds = population.column("gap"), population.column(measure)
    finite = pairs(gaps, bounds)
    ax = new_axes(ax, COLUMN, 2.6)
    ax.plot(
        finite.x,
        finite.y,
        "o",
        color=COLOURS[0],
        markersize=3.5,
        markeredgewidth=0,
        label="runs",
        rasterized=len(finite.x) > MOST_MARKS,
    )
    for axis, values in (("x", finite.x), ("y", finite.y)):
        if values and min(values) > 0:
            log_scale(ax, axis, decades=math.log10(max(values) / min(values)) + 1)
    if finite.x:
        line = _equal(finite.x, finite.y)
        ax.plot(line, line, "--", color=GREY, linewidth=1, label="bound = gap")
        ax.legend(**small_legend(None))
    holds = sum(b >= gap for gap, b in zip(finite.x, finite.y, strict=True))
    ax.set_xlabel(axis_title("gap"))
    y_label(ax, measure)
    tidy(ax, font=PRINT_FONT)
    title(ax, f"the bound holds in {holds} of {len(finite.x)} runs", finite.text)
    return ax


def _equal(gaps: Sequence[float], bounds: Sequence[float]) -> list[float]:
    """The line of a bound that equals the gap, in steps that suit either kind of axis."""
    low, high = min(gaps), max(gaps)
    if low > 0 or min(bounds) <= 0:  # straight on the axes, from one end to the other
        return [min(low, *bounds), max(high, *bounds)]
    # Gaps on a linear axis, bounds on a logarithmic one: below a gap of 0 there is no line.
    top = high if high > 0 else min(bounds)
    return [top * k / 100 for k in range(1, 101)]


def small_legend(heading: str | None) -> dict[str, Any]:
    """How legends look in print."""
    return {
        "title": None if heading is None else shown(heading),
        "fontsize": PRINT_FONT - 1,
        "title_fontsize": PRINT_FONT - 1,
        "framealpha": 0.7,
        "edgecolor": "none",
        "handletextpad": 0.4,
    }


def _points(
    ax: Axes, points: Pairs, population: Population, colour: str | None, *, logarithmic: bool
) -> None:
    groups = (
        {"": list(range(len(population.done)))} if colour is None else population.groups(colour)
    )
    at = {run: place for place, run in enumerate(points.places)}
    for i, (value, members) in enumerate(groups.items()):
        seen = [at[run] for run in members if run in at]
        if not seen:
            continue
        look = style(i)
        ax.plot(
            [points.x[k] for k in seen],
            [points.y[k] for k in seen],
            look["marker"],
            color=look["color"],
            markersize=3.5,
            markeredgewidth=0,
            alpha=0.8,
            label=f"{shown(value)} (n = {len(seen)})",
            rasterized=len(points.x) > MOST_MARKS,
        )
        if colour is not None:
            x, y = ([column[k] for k in seen] for column in (points.x, points.y))
            line = fitted_line(x, y, log_x=logarithmic)
            if line is not None:
                ax.plot(*line, color=look["color"], linewidth=1, alpha=0.9)


def _cells(ax: Axes, points: Pairs, *, logarithmic: bool) -> None:
    """Counts in hexagons: no smoothing that could make few runs look like many."""
    if not points.x:
        return
    across = min(24, max(6, round(math.sqrt(len(points.x)))))
    frame = _around(points.x, logarithmic=logarithmic), _around(points.y, logarithmic=False)
    drawn = ax.hexbin(
        points.x,
        points.y,
        gridsize=(across, max(4, round(across / 1.7))),
        xscale="log" if logarithmic else "linear",
        cmap="Blues",
        mincnt=1,
        edgecolors="white",
        linewidths=0.4,
    )
    ax.set(xlim=frame[0], ylim=frame[1])  # cells at the rim are drawn whole
    counts: Any = drawn.get_array()
    most = int(max(counts))
    drawn.set_clim(-most / 4, most)  # a single run is pale, but not white
    bar = ax.figure.colorbar(drawn, ax=ax, ticks=range(0, most + 1, max(1, math.ceil(most / 4))))
    bar.ax.set_ylim(0, most)
    bar.set_label("runs", fontsize=PRINT_FONT - 1)
    bar.ax.tick_params(labelsize=PRINT_FONT - 1)


def _around(values: Sequence[float], *, logarithmic: bool) -> tuple[float, float]:
    """The range of the values and a margin."""
    low, high = min(values), max(values)
    if logarithmic:
        margin = (high / low) ** 0.12 if high > low else 2.0
        return low / margin, high * margin
    room = 0.12 * (high - low) or 0.1 * abs(high) or 1.0
    return low - room, high + room
