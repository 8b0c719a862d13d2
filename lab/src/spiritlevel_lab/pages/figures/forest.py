"""What every measure says about the outcomes, with the interval that judges it."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from spiritlevel.ground.errors import SpiritlevelError
from spiritlevel.pages.figures.style import (
    COLOURS,
    COLUMN,
    GREY,
    PAGE,
    PRINT_DPI,
    PRINT_FONT,
    new_figure,
    shown,
    tidy,
)

from ...statistics import Association, Associations
from ..study_answer import in_words, strength

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def correlations(outcomes: Mapping[str, Associations], *, tests: int | None = None) -> Figure:
    """Spearman's ρ of every measure with each outcome, side by side; the strongest on top.

    Lines are the intervals that judge it; full circles are clear after Holm's correction.

    Args:
        outcomes: by name, the one that decides the order first, as from
            `spiritlevel_lab.population.population_statistics.side_by_side`.
        tests: measures that Holm's correction was for; None: those that are there.
    """
    if not outcomes or not all(outcomes.values()):
        raise SpiritlevelError("The 'outcomes' must have at least one measure each. Got none.")
    first = next(iter(outcomes.values()))
    names = sorted(first, key=lambda name: strength(first[name]), reverse=True)
    width = COLUMN if len(outcomes) == 1 else PAGE
    figure = new_figure(width, 0.9 + 0.22 * len(names), dpi=PRINT_DPI)
    panels = figure.subplots(1, len(outcomes), sharey=True, squeeze=False)[0]
    for ax, (outcome, found) in zip(panels, outcomes.items(), strict=True):
        for y, name in enumerate(names):
            if name in found:
                _interval(ax, y, found[name])
        ax.axvline(0, color=GREY, linewidth=0.8, zorder=1)
        ax.set_xlim(-1.05, 1.05)
        ax.set_xlabel(f"ρ with the {shown(in_words(outcome))}")
        tidy(ax, font=PRINT_FONT)
        ax.grid(False, axis="y")
    panels[0].set_yticks(range(len(names)), [shown(name) for name in names])
    panels[0].set_ylim(len(names) - 0.4, -0.6)
    counts = {each.judged.n for found in outcomes.values() for each in found.values()}
    low, high = min(counts), max(counts)
    number = str(low) if low == high else f"{low} to {high}"
    said = (
        f"Spearman's ρ, n = {number}. Lines: the widest of the intervals that count what networks "
        f"share. Full circles: clear after Holm's correction over {tests or len(names)} measures."
    )
    look: dict[str, Any] = {"fontsize": PRINT_FONT - 0.5, "color": GREY}
    letters = round(width * 17)  # that fit side by side
    figure.suptitle(textwrap.fill(said, letters), x=0.01, ha="left", **look)
    return figure


def _interval(ax: Axes, y: float, found: Association) -> None:
    value, low, high = found.judged.value, found.judged.low, found.judged.high
    small: dict[str, Any] = {"fontsize": PRINT_FONT - 1, "color": GREY, "va": "center"}
    if math.isnan(value):
        ax.text(0, y, "undefined", ha="center", **small)
        return
    colour = COLOURS[0] if found.is_clear else GREY
    if not math.isnan(low):
        ax.plot([low, high], [y, y], "-", color=colour, linewidth=1, zorder=2)
    face = colour if found.is_clear else "white"
    ax.plot(value, y, "o", color=colour, markerfacecolor=face, markersize=4, zorder=3)
