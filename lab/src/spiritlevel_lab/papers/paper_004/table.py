"""Paper 004, its table: accuracy, flatness and time for five weights of the Tr(H²)/B penalty."""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Mapping, Sequence

from spiritlevel.records.content import Figure

from ...claims.contrasts import factor_by_seed, line
from ...claims.experiment import Experiment, Outcome, Row
from ...claims.findings import above, below, every, verdict
from ...claims.numbers import IntervalEstimate
from ...claims.rows import column
from ..recipes.recipe import Recipe
from .tasks_flatness_penalty import SECONDS

WEIGHT, TIME, FLATNESS = "task.weight", "time over λ = 0", "task.average_flatness"
MODERATE = 0.01  # the weight the paper recommends
SMALLEST = 1e-4  # where 0 is drawn on a logarithmic axis


def analyse(experiment: Experiment, rows: Sequence[Row]) -> Outcome:
    """Does flatness fall with λ, and is the accuracy kept at the recommended weight?"""
    unpenalized = column([row for row in rows if row[WEIGHT] == 0.0], SECONDS)
    unit = statistics.median(unpenalized) if unpenalized else math.nan
    recipe = Recipe(experiment, [{**row, TIME: row[SECONDS] / unit} for row in rows])
    change, flatness = recipe.numbers["change"], recipe.each["flatness"]
    values = [each.value for each in flatness.values()]
    falls = all(a > b for a, b in itertools.pairwise(values)) if len(values) > 1 else None
    groups = recipe.runs.groups
    findings = [
        every(
            "flatness falls with every step of λ (ratio to the step before, paired by seed)",
            [
                below(f"to {after:g}", factor_by_seed(groups[before], groups[after], FLATNESS), 1.0)
                for before, after in itertools.pairwise(groups)
            ],
        ),
        above(f"the final accuracy at λ = {MODERATE:g} is kept", change),
    ]
    cost = recipe.each["time"].get(MODERATE) if unpenalized else None
    theirs = experiment.paper_values[f"{TIME}, λ = {MODERATE:g}"]
    return dataclasses.replace(
        recipe.outcome(said=_conclusion(falls, change, cost, theirs)),
        findings=findings,
        agrees=verdict(findings),
        figure=_figure(flatness),
    )


def _conclusion(
    falls: bool | None, change: IntervalEstimate, cost: IntervalEstimate | None, theirs: float
) -> str:
    """What the networks show that are there; those of some weights may not be trained yet."""
    said = []
    if falls is not None:
        verb = "falls" if falls else "does not fall"
        said.append(f"the average of Tr(H²)/B {verb} with every step of λ")
    if change.n:
        said.append(
            f"at λ = {MODERATE:g} the final accuracy changes by {change} (paired by seed, n = "
            f"{change.n})"
        )
    if cost is not None:
        said.append(
            f"training takes {cost} times as long as without the penalty, not {theirs:.0f} times"
        )
    if not said:
        return "These networks show no part of it yet."
    text = ", and ".join(filter(None, ("; ".join(said[:-1]), said[-1])))
    return f"{text[0].upper()}{text[1:]}."


def _figure(flatness: Mapping[float, IntervalEstimate]) -> Figure:
    drawn = line("here", [max(weight, SMALLEST) for weight in flatness], list(flatness.values()))
    label = f"λ (0 is drawn at {SMALLEST:.4f})"
    return Figure(label, "average Tr(H²)/B", [drawn], log_x=True, log_y=True)
