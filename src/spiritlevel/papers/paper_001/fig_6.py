"""Paper 001, Fig. 6: noise on the inputs of a ViT in its first epoch, norms free and fixed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ..judging.contrasts import difference
from ..judging.experiment import Experiment, Outcome, Row
from ..judging.findings import Finding, below, unmoved, verdict, with_added
from ..judging.numbers import mean
from ..judging.rows import column, grouped
from ..recipes.recipe import Recipe

NOISE, TRACE = "interventions.input_noise", "curvature.trace"
LIMIT = 0.3  # variance of the noise beyond which the paper's network does not train
GUESSING = 0.1  # the accuracy of a guess among ten classes


def analyse(experiment: Experiment, rows: Sequence[Row]) -> Outcome:
    """By the recipe, with the parts on strong noise, if there is some."""
    recipe = Recipe(experiment, rows)
    found = recipe.outcome()
    first, others = found.findings[:2], found.findings[2:]
    added = [*_beyond_the_limit(recipe.runs.named("norms fixed")), *others]
    agrees = with_added(verdict(first), added)
    return dataclasses.replace(found, findings=[*first, *added], agrees=agrees)


def _beyond_the_limit(rows: Sequence[Row]) -> list[Finding]:
    """The parts on strong noise; none if no noise is beyond the limit, or none below it."""
    groups = grouped(rows, NOISE)
    strong = [noise for noise in groups if noise**2 > LIMIT]
    weak = [noise for noise in groups if noise**2 <= LIMIT]
    if not strong or not weak:
        return []
    reached = [a for a in column(groups[max(strong)], "train_accuracy") if a is not None]
    flatter = difference(groups[max(strong)], groups[max(weak)], TRACE)
    strongest = f"with fixed norms and a noise of {max(strong):g}, a variance beyond {LIMIT:g},"
    return [
        unmoved(
            f"{strongest} nothing is learned: training accuracy minus the {GUESSING:g} of guessing",
            mean(accuracy - GUESSING for accuracy in reached),
        ),
        below(f"{strongest} the trace is even smaller than with {max(weak):g}", flatter),
    ]
