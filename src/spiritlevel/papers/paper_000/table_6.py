"""Paper 000, Table 6: augmentation, the gap, and flatness of the head."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from ..judging import population
from ..judging.experiment import Experiment, Outcome, Row
from ..judging.numbers import mean
from ..judging.population import CONFOUNDERS, FEW
from ..judging.rows import column
from ..recipes.recipe import outcome
from ..recipes.runs import GroupedRuns

HEAD, GAP = "head.kappa", "error_gap"
PLAIN = "None"


def analyse(experiment: Experiment, rows: Sequence[Row]) -> Outcome:
    """By the recipe, and why: how far the images were learned, and what else explains it."""
    groups = GroupedRuns.of(rows, experiment.recipe["groups"]).groups
    return dataclasses.replace(outcome(experiment, rows), why=_why(rows, groups))


def _why(rows: Sequence[Row], groups: Mapping[str, Sequence[Row]]) -> str:
    """The training accuracy under each augmentation, and what else explains the correlation."""
    if len(rows) < FEW:
        return ""
    learned = ", ".join(
        f"{mean(column(group, 'train_accuracy'))} {'without' if name == PLAIN else f'with {name}'}"
        for name, group in groups.items()
    )
    accuracies = f"At the end of training the training accuracy is {learned}."
    if any(all(row.get(name) is None for row in rows) for name in CONFOUNDERS):
        return accuracies  # an old record without the confounders
    of_accuracies = [{**row, population.GAP: row[GAP]} for row in rows]
    why = population.why(of_accuracies, HEAD, "relative flatness of the head")
    return f"{accuracies} {why}"
