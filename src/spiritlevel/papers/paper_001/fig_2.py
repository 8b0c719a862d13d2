"""Paper 001, Fig. 2: shifting the first bias changes how often units fire, and the trace."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ...content import Cell, Table
from ...study.statistics import spearman
from ..judging.experiment import Experiment, Outcome, Row, titled
from ..judging.findings import estimate
from ..judging.numbers import mean
from ..judging.rows import column, grouped
from ..recipes.recipe import outcome

SHIFT, FREQUENCY = "interventions.bias_shift", "activity.frequency"


def analyse(experiment: Experiment, rows: Sequence[Row]) -> Outcome:
    """By the recipe, with the frequency of each layer as the paper's figure shows it."""
    found = outcome(experiment, rows)
    return dataclasses.replace(found, more=[*_each_layer(rows), *found.more])


def _each_layer(rows: Sequence[Row]) -> list[Table]:
    """What Fig. 2 (c) shows; nothing if the layers were not recorded."""
    layers = sorted({key for row in rows for key in row if key.startswith(f"{FREQUENCY}[")})
    if not layers:
        return []
    table: list[list[Cell]] = [
        [shift, len(group), *(mean(column(group, layer)) for layer in layers)]
        for shift, group in grouped(rows, SHIFT).items()
    ]
    ranks = (spearman(column(rows, SHIFT), column(rows, layer)) for layer in layers)
    table.append(["Spearman with the shift", len(rows), *map(estimate, ranks)])
    return [
        titled(
            "The activation frequency of each layer",
            "Shown as in the paper's figure and not judged; the table above has their mean.",
            Table(("shift of the bias", "n", *layers), table),
        )
    ]
