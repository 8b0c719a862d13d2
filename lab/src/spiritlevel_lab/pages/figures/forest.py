"""What every measure says about the target, with its interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from spiritlevel.ground.errors import SpiritlevelError, brief
from spiritlevel.pages.figures.style import (
    COLOURS,
    COLUMN,
    GREY,
    PRINT_FONT,
    new_axes,
    shown,
    tidy,
    title,
)

from ...statistics import Correlation, MeasureStatistics, StudyStatistics
from ...statistics.text import percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Kind = Literal["spearman", "pearson", "kendall"]
SYMBOLS: dict[str, str] = {"spearman": "Spearman ρ", "pearson": "Pearson r", "kendall": "Kendall τ"}
APART = 0.17  # of a row: between a correlation and the same given the confounders


def correlations(
    statistics: StudyStatistics,
    kind: Kind = "spearman",
    *,
    target: str = "target",
    ax: Axes | None = None,
) -> Axes:
    """Every measure's correlation with the target and its interval, the largest on top.

    Filled points are significant after Holm's correction over all measures. Where the study has
    confounders, grey squares are the same correlation with these held fixed.

    Args:
        statistics: as `spiritlevel_lab.population.population_statistics.statistics` gives it.
        kind: "spearman", "pearson" or "kendall", which has no form with confounders held fixed.
        target: what to call it.
        ax: where to draw; None makes a figure one column wide.
    """
    if kind not in SYMBOLS:
        raise SpiritlevelError(
            f"The 'kind' must be one of {', '.join(SYMBOLS)}. Got {brief(kind)}."
        )
    rows = sorted(statistics.measures.values(), key=lambda row: _order(getattr(row, kind)))
    ax = new_axes(ax, COLUMN, 0.9 + 0.22 * len(rows))
    alpha = 1 - statistics.confidence
    partials = [getattr(row, f"partial_{kind}", None) for row in rows]
    shift = APART if any(partials) else 0.0
    small: dict[str, Any] = {"fontsize": PRINT_FONT - 1, "color": GREY, "va": "center"}
    for y, (row, given) in enumerate(zip(rows, partials, strict=True)):
        correlation: Correlation = getattr(row, kind)
        filled = row.holm.get(kind, math.nan) <= alpha
        _interval(ax, y - shift, correlation, "o", COLOURS[0], filled=filled)
        if given is not None:
            significant = row.holm.get(f"partial_{kind}", math.nan) <= alpha
            _interval(ax, y + shift, given, "s", GREY, filled=significant)
        if math.isnan(correlation.value):
            ax.text(0, y, shown(correlation.reason), ha="center", **small)
        ax.text(1.02, y, str(correlation.n), transform=ax.get_yaxis_transform(), **small)
    ax.text(1.02, len(rows) - 0.3, "n", transform=ax.get_yaxis_transform(), **small)
    ax.axvline(0, color=GREY, linewidth=0.8, zorder=1)
    ax.set_yticks(range(len(rows)), [shown(row.name) for row in rows])
    ax.set_ylim(len(rows) - 0.5, -0.6)
    ax.set_xlim(-1.05, 1.05)
    ax.set_xlabel(f"{SYMBOLS[kind]} with the {shown(target.replace('_', ' '))}")
    tidy(ax, font=PRINT_FONT)
    ax.grid(False, axis="y")
    title(ax, *_legend_lines(statistics, rows, kind, given=shift > 0))
    return ax


def _order(correlation: Correlation) -> tuple[bool, float]:
    undefined = math.isnan(correlation.value)
    return undefined, 0.0 if undefined else -correlation.value


def _interval(
    ax: Axes, y: float, found: Correlation, marker: str, colour: str, *, filled: bool
) -> None:
    if math.isnan(found.value):
        return
    if not math.isnan(found.low):
        ax.plot([found.low, found.high], [y, y], "-", color=colour, linewidth=1, zorder=2)
    face = colour if filled else "white"
    ax.plot(found.value, y, marker, color=colour, markerfacecolor=face, markersize=4, zorder=3)


def _legend_lines(
    found: StudyStatistics, rows: Sequence[MeasureStatistics], kind: Kind, *, given: bool
) -> list[str]:
    tests = found.holm[kind].num_tests
    lines = [
        f"lines: {percent(found.confidence)} intervals; filled: p ≤ {1 - found.confidence:.2g} "
        f"after Holm's correction over {tests} measures",
    ]
    if given:
        given_names = ", ".join(map(shown, found.confounders))
        lines.append(f"grey squares: given {given_names}")
    if found.without_target:
        lines.append(f"{found.without_target} of {found.n} runs have no finite target")
    return lines
