"""Paper 000, Table 5: does flatness of the head follow the gap in other networks too?"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ..judging.experiment import Experiment, Outcome, Row
from ..judging.population import FEW, why
from ..recipes.recipe import outcome
from ..recipes.runs import GroupedRuns


def analyse(experiment: Experiment, rows: Sequence[Row]) -> Outcome:
    """By the recipe, and what is left in each network with the confounders held fixed."""
    groups = GroupedRuns.of(rows, experiment.recipe["groups"]).groups
    reasons = [
        f"{name}: {why(group, 'head.kappa', 'relative flatness of the head')}"
        for name, group in groups.items()
        if len(group) >= FEW
    ]
    return dataclasses.replace(outcome(experiment, rows), why=" ".join(reasons))
