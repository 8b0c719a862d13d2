"""Paper 001, Fig. 5: when the sharpness of augmented and plain training begins to differ."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence

from ...content import Table
from ..judging.experiment import Experiment, Outcome, Row, titled
from ..judging.numbers import IntervalEstimate, mean
from ..judging.rows import at_points
from ..recipes.recipe import Recipe
from .tasks_points import TRAIN

LARGEST, TRACE = "curvature.lambda_max", "curvature.ggn_trace"
STANDARD, FIXED = ("plain", "augmented"), ("plain, norms fixed", "augmented, norms fixed")
FITTED = 0.9  # training accuracy of the plain network at the paper's dashed line


def analyse(experiment: Experiment, rows: Sequence[Row]) -> Outcome:
    """Distance of the two curves before and after the plain network is fitted, seed by seed."""
    recipe = Recipe(experiment, rows)
    groups = recipe.runs.outer
    before, later, sooner = _apart(groups, LARGEST)
    plain = groups[STANDARD[0]]
    found = recipe.outcome(
        before=before,
        later=later,
        sooner=sooner,
        fitted=sum(any(a >= FITTED for a in at_points(row, TRAIN)) for row in plain),
        plain=len(plain),
    )
    return dataclasses.replace(found, more=[_with_trace(groups)])


def _apart(
    groups: Mapping[str, Sequence[Row]], name: str
) -> tuple[IntervalEstimate, IntervalEstimate, IntervalEstimate]:
    """Distance before the plain network is fitted; its change after that, and with fixed norms."""
    before, after = distances(groups[STANDARD[0]], groups[STANDARD[1]], name)
    fixed_before, _ = distances(groups[FIXED[0]], groups[FIXED[1]], name)
    return mean(before.values()), _difference(after, before), _difference(fixed_before, before)


def _with_trace(groups: Mapping[str, Sequence[Row]]) -> Table:
    return titled(
        "The same with the trace",
        "The paper's caption says that the figure shows the largest eigenvalue, its text that it "
        "shows the trace. The eigenvalue is judged; this table has the distances of both, each "
        "between logarithms to base 10. The trace is that of the Gauss-Newton matrix, which was "
        "recorded.",
        Table(
            (
                "number",
                "distance before",
                "change afterwards",
                "extra distance, norms fixed",
            ),
            [[name, *_apart(groups, name)] for name in (LARGEST, TRACE)],
        ),
    )


def distances(
    plain: Sequence[Row], augmented: Sequence[Row], name: str = LARGEST
) -> tuple[dict[int, float], dict[int, float]]:
    """Mean of |log10 a − log10 b| by seed: until the plain network is fitted, and from then on.

    A seed without such points has no entry.
    """
    others = {row["seed"]: row for row in augmented}
    before: dict[int, float] = {}
    after: dict[int, float] = {}
    for row in plain:
        if row["seed"] not in others:
            continue
        pairs = zip(
            at_points(row, TRAIN),
            at_points(row, name),
            at_points(others[row["seed"]], name),
            strict=False,  # one of them may have diverged
        )
        apart = [
            (accuracy, abs(math.log10(a / b)))
            for accuracy, a, b in pairs
            if a > 0 and b > 0  # a trace rounds to 0 where outputs are one-hot
        ]
        fitted = next((i for i, (accuracy, _) in enumerate(apart) if accuracy >= FITTED), None)
        parts = (apart[:fitted], [] if fitted is None else apart[fitted:])
        for by_seed, part in zip((before, after), parts, strict=True):
            if part:
                by_seed[row["seed"]] = statistics.fmean(distance for _, distance in part)
    return before, after


def _difference(changed: dict[int, float], plain: dict[int, float]) -> IntervalEstimate:
    return mean(changed[seed] - plain[seed] for seed in changed if seed in plain)
