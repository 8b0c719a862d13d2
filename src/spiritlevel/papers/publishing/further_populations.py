"""The other populations of an experiment: whether the sign is the same on other networks."""

from __future__ import annotations

from collections.abc import Sequence

from ...content import Cell, Table
from ...pages import markdown
from .population_lines import OVER_ALL, WITHIN, Population
from .scale_table import population_in_words

TITLE = "### The same on other networks"
SHOWN = 2  # measures of each population
INTRODUCTION = (
    "Some experiments were also run with other networks, images or rates, further from the "
    "paper's. Of each of these populations: the first two measures of the experiment, and their "
    "rank correlations with the gap of the losses. They are not counted in the table at the top. "
    "Of measures that tell nothing, about one interval in 20 would miss 0."
)
COLUMNS = ("experiment, preset", "networks", "trained", "settings", "measure", WITHIN, OVER_ALL)


def further_populations(populations: Sequence[Population]) -> list[str]:
    """A section with a table; nothing where each experiment has one population."""
    rows = [row for population in populations for row in _rows(population)]
    return [TITLE, INTRODUCTION, markdown.table(Table(COLUMNS, rows))] if rows else []


def _rows(population: Population) -> list[list[Cell]]:
    result = population.result
    name = ", ".join(filter(None, (result.experiment.name, result.record.preset)))
    rows: list[list[Cell]] = []
    for line in population.lines[:SHOWN]:
        n, settings = line.levels.pooled.n, line.levels.clustered.clusters
        views = [line.views[view] for view in (WITHIN, OVER_ALL)]
        rows.append([name, population_in_words(result), n, settings, line.measure, *views])
    return rows
