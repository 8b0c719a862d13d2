"""The picture of "What holds": populations by three outcomes, within settings and over all."""

from __future__ import annotations

import math
from collections.abc import Sequence

from spiritlevel.pages.figures.style import COLOURS, FONT, GREY, MARKERS, new_figure, save, tidy
from spiritlevel_lab.claims.rows import OUTCOMES

from .population_lines import LEVELS, MeasuredPopulation
from .results import cited
from .scale_table import population_in_words

WIDTH, ROW, MARGIN = 9.0, 0.2, 0.9  # inches
GAP = 1.6  # rows between populations


def forest(populations: Sequence[MeasuredPopulation]) -> bytes:
    """One panel a level; a row for each outcome, with the first measure of each population."""
    block = len(OUTCOMES) + GAP
    page = new_figure(WIDTH, MARGIN + ROW * block * len(populations))
    panels = page.subplots(1, len(LEVELS), sharey=True)
    for ax, level in zip(panels, LEVELS, strict=True):
        for place, population in enumerate(populations):
            line = population.lines[0]
            for row, (outcome, words) in enumerate(OUTCOMES.items()):
                found = line.views.get((level, outcome))
                if found is None or math.isnan(found.value):
                    continue
                y, colour = place * block + row, COLOURS[row]
                if not math.isnan(found.low):
                    ax.plot([found.low, found.high], [y, y], "-", color=colour, linewidth=1.5)
                ax.plot(
                    *(found.value, y, MARKERS[row]),
                    color=colour,
                    markersize=4.5,
                    label=words if not place else None,
                )
        ax.axvline(0, color=GREY, linewidth=0.8, zorder=1)
        ax.set_xlim(-1.05, 1.05)
        ax.set_title(level, fontsize=FONT, loc="left")
        ax.set_xlabel("rank correlation (above 0: the flatter, the smaller)", fontsize=FONT)
        tidy(ax)
        ax.grid(False, axis="y")
    middle = (len(OUTCOMES) - 1) / 2
    panels[0].set_yticks(
        [place * block + middle for place in range(len(populations))],
        [_named(each) for each in populations],
    )
    panels[0].set_ylim(block * len(populations) - GAP + 0.4, -0.8)
    page.legend(
        *panels[0].get_legend_handles_labels(),
        loc="outside upper center",
        ncols=len(OUTCOMES),
        frameon=False,
        fontsize=FONT,
    )
    return save(page, "svg")


def _named(population: MeasuredPopulation) -> str:
    result, measure = population.result, population.lines[0].measure
    return (
        f"{cited(result.experiment)}\n{population_in_words(result)}\n{measure}, "
        f"{population.num_networks} networks, {population.num_settings} settings"
    )
