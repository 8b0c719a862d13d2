"""All figures of a study, in pages as wide as a paper's."""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from spiritlevel.ground.errors import SpiritlevelError, suggestion
from spiritlevel.pages.figures.style import COLOURS, COLUMN, MARKERS, PAGE, PRINT_DPI, new_figure

from ...population.population import Population
from ...population.population_statistics import side_by_side
from ...statistics import StudyStatistics
from .forest import correlations
from .heatmap import agreement
from .quartiles import boxes, layer_profile, training
from .scatter import BOUND, VIEWS, View, bound, measure_against, small_legend

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Panel = Callable[["Axes", str], "Axes"]
ACROSS, DOWN = 3, 4  # panels of a page
PANEL, TALL_PANEL = 2.05, 2.5  # inches high; tall with slanted names below
ROOM = 30  # letters that fit side by side below a panel
FEW_LAYERS = 8  # whose names fit below a panel
MOST_VALUES = 12  # of a setting that gets boxes: more do not fit side by side


@dataclasses.dataclass(frozen=True)
class StudyFigures:
    """Functions that draw, by file name without its ending; and why a figure is not there."""

    drawn: Mapping[str, Callable[[], Figure]]
    left_out: Mapping[str, str]


def study_figures(
    population: Population,
    statistics: StudyStatistics,
    *,
    target: str = "gap",
    measures: Sequence[str] | None = None,
    colour: str | None = None,
) -> StudyFigures:
    """Every view of a study, each drawn when it is asked for: many figures take much memory.

    Args:
        population: read by `Population.of(store)`.
        statistics: of the same study and target, by
            `spiritlevel_lab.population.population_statistics.statistics`.
        target: what the measures are to say something about.
        measures: names or patterns; None takes all.
        colour: a setting whose values get a colour each, such as "lr" or "variant"; None takes
            the first that varies.
    """
    population.check("target", target, list(population.targets))
    colour = _colour(population, colour)
    names = _chosen(population, measures)
    narrowed = dataclasses.replace(population, measures=names)
    drawn: dict[str, Callable[[], Figure]] = {}
    left_out: dict[str, str] = {}

    for view in VIEWS:
        panel = _view_panel(narrowed, target, view, colour, statistics)
        key = colour if view != "density" else None
        drawn |= dict(_pages(f"{target}-{view}", names, panel, same_y=True, legend=key))
    if names:
        drawn["correlations"] = lambda: _correlations(population, statistics, target, names)
        drawn["agreement"] = lambda: _of(agreement(narrowed, target=target))
    else:
        left_out["correlations"] = "no run has a measure"
    if population.outcomes is None:
        drawn["training"] = lambda: _training(population, None)
    else:
        left_out["training"] = "the networks were given, and not trained here"
    for axis in population.axes:
        number, name = len(population.groups(axis)), _file_name(axis)
        if not 2 <= number <= MOST_VALUES:
            why = f"values of {axis} in the runs: {number}; drawn are 2 to {MOST_VALUES}"
            left_out |= {f"training-{name}": why, f"boxes-{name}": why}
            continue
        if population.outcomes is None:
            drawn[f"training-{name}"] = functools.partial(_training, population, axis)
        panel = _box_panel(population, axis)
        widest = max(len(value) for value in population.groups(axis))
        high = PANEL if number * max(widest, 6) <= ROOM else TALL_PANEL
        drawn |= dict(_pages(f"boxes-{name}", [target, *names], panel, high=high))
    if {"optimizer", "lr"} <= set(population.axes):
        drawn["boxes-optimizer-lr"] = lambda: _box_pairs(population, target)
    layered = [name for name in names if name in population.layers]
    if layered:
        most = max(len(layers) for name in layered for layers in population.layers[name].values())
        across, high = (ACROSS, PANEL) if most <= FEW_LAYERS else (1, TALL_PANEL)
        panel = _layer_panel(population, colour)
        drawn |= dict(_pages("layers", layered, panel, legend=colour, across=across, high=high))
    else:
        left_out["layers"] = "none of the measures has layers"
    if BOUND in population.measures:
        drawn["bound"] = lambda: _of(bound(population))
    else:
        left_out["bound"] = f"the study has no {BOUND}"
    return StudyFigures(drawn, left_out)


def _chosen(population: Population, patterns: Sequence[str] | None) -> list[str]:
    if patterns is None:
        return list(population.measures)
    for pattern in patterns:
        if not fnmatch.filter(population.measures, pattern):
            raise SpiritlevelError(
                f"The study has no measure {pattern!r}."
                f"{suggestion(pattern, population.measures)} "
                f"It has: {', '.join(population.measures) or 'none'}."
            )
    return [m for m in population.measures if any(fnmatch.fnmatch(m, p) for p in patterns)]


def _file_name(setting: str) -> str:
    """The setting's name is a user's: no slash of it may lead to another folder."""
    return re.sub(r"[^\w.-]", "-", setting)


def _colour(population: Population, wanted: str | None) -> str | None:
    """The setting that was asked for, or the first with a few values; None if there is none."""
    if wanted is None:
        few = (a for a in population.axes if 2 <= len(population.groups(a)) <= MOST_VALUES)
        return next(few, None)
    population.check("colour", wanted, [*population.axes, "seed"])
    number, most = len(population.groups(wanted)), len(COLOURS) * len(MARKERS)
    if number > most:
        raise SpiritlevelError(
            f"The 'colour' must be a setting with at most {most} values, since no more colours "
            f"and shapes can be told apart. {wanted!r} has {number}. Choose another setting."
        )
    return wanted


def _of(ax: Axes) -> Figure:
    figure: Any = ax.figure
    return figure


def _pages(
    name: str, items: Sequence[str], draw: Panel, *, across: int = ACROSS, **look: Any
) -> Iterator[tuple[str, Callable[[], Figure]]]:
    """Panels in figures of at most four rows, pages nearly alike; later ones are numbered."""
    pages = math.ceil(len(items) / (across * DOWN))
    each = across * math.ceil(len(items) / max(1, pages) / across)
    for number, start in enumerate(range(0, len(items), max(1, each)), start=1):
        part = items[start : start + each]
        page = name if number == 1 else f"{name}-{number}"

        def make(part: Sequence[str] = part) -> Figure:
            return _page(part, draw, across=across, **look)

        yield page, make


def _page(
    items: Sequence[str],
    draw: Panel,
    *,
    across: int,
    high: float = PANEL,
    same_y: bool = False,
    legend: str | None = None,
) -> Figure:
    down = math.ceil(len(items) / across)
    columns = min(across, len(items))
    width = COLUMN if columns == 1 < across else PAGE
    figure = new_figure(width, high * down + (0.4 if legend else 0.1), dpi=PRINT_DPI)
    panels = figure.subplots(down, columns, squeeze=False).ravel()
    for ax, item in zip(panels, items, strict=False):
        draw(ax, item)
        if same_y and not ax.get_subplotspec().is_first_col():
            ax.set_ylabel("")
    for ax in panels[len(items) :]:
        ax.remove()
    if legend is not None:
        _shared_legend(figure, list(panels[: len(items)]), legend)
    return figure


def _shared_legend(figure: Figure, panels: Sequence[Axes], heading: str) -> None:
    """Below all panels; a value may be missing from one, whose numbers for it are left out."""
    named: dict[str, Any] = {}
    for ax in panels:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            named.setdefault(label.rsplit(" (n = ", 1)[0], handle)
    look = small_legend(heading) | {"ncols": max(1, min(6, len(named)))}
    figure.legend(list(named.values()), list(named), loc="outside lower center", **look)


def _box_panel(population: Population, axis: str) -> Panel:
    return lambda ax, column: boxes(population, column, axis, ax=ax)


def _layer_panel(population: Population, colour: str | None) -> Panel:
    return lambda ax, name: layer_profile(population, name, by=colour, legend=False, ax=ax)


def _correlations(
    population: Population, statistics: StudyStatistics, target: str, names: Sequence[str]
) -> Figure:
    """Of the measures that are drawn; they are judged among all."""
    outcomes = side_by_side(population, statistics, target)
    shown = {o: {n: found[n] for n in names if n in found} for o, found in outcomes.items()}
    return correlations(shown, tests=len(statistics.measures))


def _view_panel(
    population: Population,
    target: str,
    view: View,
    colour: str | None,
    statistics: StudyStatistics,
) -> Panel:
    look: dict[str, Any] = {"target": target, "view": view, "colour": colour, "legend": False}
    return lambda ax, name: measure_against(
        population, name, judged=statistics[name].judged, ax=ax, **look
    )


def _training(population: Population, by: str | None) -> Figure:
    """Losses beside accuracies; with a setting, those on test data."""
    figure = new_figure(PAGE, 2.6 if by is None else 3.0, dpi=PRINT_DPI)
    panels = figure.subplots(1, 2)
    parts = ("train", "test") if by is None else ("test",)
    for ax, what in zip(panels, ("loss", "accuracy"), strict=True):
        columns = [f"{part}_{what}" for part in parts]
        training(population, columns, by=by, legend=by is None, ax=ax)
    if by is not None:
        _shared_legend(figure, list(panels[:1]), by)
    return figure


def _box_pairs(population: Population, target: str) -> Figure:
    figure = new_figure(PAGE, 3.2, dpi=PRINT_DPI)
    ax = figure.add_subplot()
    boxes(population, target, "optimizer", split="lr", legend=False, ax=ax)
    _shared_legend(figure, [ax], "lr")
    return figure
