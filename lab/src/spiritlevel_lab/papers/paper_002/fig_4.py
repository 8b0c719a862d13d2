"""Paper 002, Fig. 4: flatness and a kernel density together bound the gap."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from ...claims.experiment import Experiment, Outcome, Row
from ...claims.findings import Finding, Result, above, every, shown, verdict
from ...statistics import spearman
from ..recipes.recipe import Recipe
from .tasks_class_separation import FEATURES

KAPPA, MISS = "relative.kappa", "bound.representativeness"
FALLS = {"held": "falls", "not held": "does not fall", "undecided": "does not clearly fall"}


def analyse(experiment: Experiment, rows: Sequence[Row]) -> Outcome:
    """Gap and bounds by separation; the bound with the authors' δ is judged."""
    most = experiment.thresholds["covered"]
    recipe = Recipe(experiment, [{**row, **_bounds(row, experiment.thresholds)} for row in rows])
    gaps, bounds, covered = (recipe.each[name] for name in ("gap", "bound", "covered"))
    least = min(each.value for each in covered.values())
    ratios = [bounds[s].value / gaps[s].value for s in gaps]
    covers, falls = least >= most, _falls(bounds)
    findings = [
        every(
            f"it lies above the gap in {most:.0%} of the data sets (share, at each separation)",
            [above(f"{separation:g}", each, most) for separation, each in covered.items()],
        ),
        shown(
            "it is tight (the paper does not say how tight): its mean over the mean gap",
            f"{min(ratios):.2g} to {max(ratios):.2g} times",
        ),
        Finding(
            "it falls as the classes move apart",
            falls,
            f"from {bounds[min(bounds)]} to {bounds[max(bounds)]}",
        ),
    ]
    found = recipe.outcome(
        covers="covers" if covers else "does not cover",
        least=least,
        smallest=min(ratios),
        largest=max(ratios),
        falls=FALLS[falls],
    )
    return dataclasses.replace(found, findings=findings, agrees=verdict(findings))


def _bounds(row: Row, thresholds: Mapping[str, float]) -> dict[str, float]:
    """Columns by the names that table and figure give them."""
    bound = approximate_bound(row, thresholds["delta"])
    return {
        "generalization gap": row["gap"],
        "approximate bound": bound,
        "covered": float(bound >= row["gap"]),
        "approximate bound, δ of the theorem": approximate_bound(row, theorem_delta(row)),
    }


def approximate_bound(row: Row, delta: float) -> float:
    """Feature robustness by flatness, δ²κ/2m, plus what the kernel density misses."""
    return float(delta**2 * row[KAPPA] / (2 * FEATURES) + row[MISS])


def theorem_delta(row: Row) -> float:
    """The δ of the theorem: |S|^(−1/(4+m)) for m features."""
    return float(row["num_train"] ** (-1 / (4 + FEATURES)))


def _falls(bounds: Mapping[float, Any]) -> Result:
    """Whether the bound falls as the classes move apart; few separations leave that undecided."""
    first, last = bounds[min(bounds)], bounds[max(bounds)]
    trend = spearman(list(bounds), [b.value for b in bounds.values()])
    if not trend.p < 0.05:  # nan where there are too few to tell
        return "undecided"
    if trend.value < 0:
        return "held" if last.high < first.low else "undecided"
    return "not held" if first.high < last.low else "undecided"
