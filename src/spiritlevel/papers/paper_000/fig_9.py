"""Paper 000, Fig. 9: flatness and gap under three augmentations, and where networks settle."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from ...content import Panels
from ..judging.experiment import Experiment, Outcome, Row
from ..recipes.recipe import outcome
from ..recipes.runs import GroupedRuns
from .flatness_panels import drawn, marks

GAP, LABEL = "error_gap", "gap of the accuracies"


def analyse(experiment: Experiment, rows: Sequence[Row]) -> Outcome:
    """By the recipe, with three panels for each augmentation."""
    shown = drawn(rows, GAP)
    groups = GroupedRuns.of(shown, experiment.recipe["groups"]).groups
    panels = _panels(groups) if groups else None
    return dataclasses.replace(outcome(experiment, shown), figure=panels)


def _panels(groups: Mapping[str, Sequence[Row]]) -> Panels:
    return Panels(
        [
            panel
            for name, group in groups.items()
            for panel in (
                marks({name: group}, GAP, LABEL, name),
                marks({name: group}, GAP, LABEL, f"{name}, logarithm of the gap", log_y=True),
                marks({name: group}, GAP, LABEL, f"{name}, joint density", density=True),
            )
        ],
        columns=3,
    )
