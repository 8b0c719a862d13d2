"""Paper 001, Fig. 8: a text transformer, where trace and activity do not move together."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ..judging.experiment import Experiment, Outcome, Row
from ..judging.findings import Agreement, Finding, verdict
from ..judging.numbers import IntervalEstimate
from ..recipes.recipe import Recipe


def analyse(experiment: Experiment, rows: Sequence[Row]) -> Outcome:
    """By the recipe; between both trends it is partly so."""
    recipe = Recipe(experiment, rows)
    activity = recipe.numbers["activity"]
    found = recipe.outcome(kind=_kind(activity, experiment.thresholds["alike"]))
    return dataclasses.replace(found, agrees=_agreement(found.findings[0], activity.n))


def _kind(activity: IntervalEstimate, alike: float) -> str:
    """Whether the trend is opposite or absent, if it is not the same."""
    if activity.high < 0:
        return "The trend is opposite, not absent."
    if activity.value <= -alike:
        return "The mean suggests an opposite trend; with so few runs it may also be none."
    if activity.low <= 0 <= activity.high:
        return "There is no clear trend, neither the same nor an opposite one."
    return ""


def _agreement(apart: Finding, n: int) -> Agreement:
    between = apart.result == "undecided" and n > 1  # one run has no interval
    return "partly" if between else verdict([apart])
