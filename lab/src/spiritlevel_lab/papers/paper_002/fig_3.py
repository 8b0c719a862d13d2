"""Paper 002, Fig. 3: class separation, and the correlation of flatness with the gap."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from ...claims.experiment import Experiment, Outcome, Row
from ...claims.findings import (
    Agreement,
    Finding,
    Result,
    above,
    agreeing,
    estimate,
    missed,
    unmoved,
)
from ...statistics import Correlation, spearman
from ..recipes.recipe import Recipe

RISES = {
    "yes": "rises",
    "partly": "partly rises",
    "no": "does not clearly rise",
    "undecided": "does not clearly rise or fall",
}


def analyse(experiment: Experiment, rows: Sequence[Row]) -> Outcome:
    """Correlations over data sets of one separation; three checks for each classifier."""
    recipe = Recipe(experiment, rows)
    correlations, ranks = (_by_classifier(recipe.each[name]) for name in ("correlation", "rank"))
    checks = [
        _checks(classifier, found, ranks[classifier]) for classifier, found in correlations.items()
    ]
    agrees = _agreement(checks)
    said = [
        f"with the {classifier} classifier it is {found[min(found)]} at a separation of "
        f"{min(found):g} and {found[max(found)]} (by ranks {ranks[classifier][max(found)]}) at "
        f"{max(found):g}"
        for classifier, found in correlations.items()
    ]
    return dataclasses.replace(
        recipe.outcome(rises=RISES[agrees], by_classifier=", ".join(said)),
        findings=[finding for each in checks for finding in each],
        agrees=agrees,
    )


def _by_classifier(numbers: Mapping[tuple[str, float], Any]) -> dict[str, dict[float, Correlation]]:
    found: dict[str, dict[float, Correlation]] = {}
    for (classifier, separation), correlation in numbers.items():
        found.setdefault(classifier, {})[separation] = correlation
    return found


def _checks(
    classifier: str, by_separation: dict[float, Correlation], ranks: dict[float, Correlation]
) -> list[Finding]:
    """Ranks stand beside Pearson's correlation, which rests on few data sets: tails are heavy."""
    trend = spearman(list(by_separation), [c.value for c in by_separation.values()])
    result: Result = "undecided"
    if trend.p < 0.05:
        result = "held" if trend.value > 0 else "not held"
    smallest, largest = min(by_separation), max(by_separation)
    return [
        Finding(f"{classifier}: it rises with the separation", result, estimate(trend)),
        agreeing(
            f"{classifier}: none at a separation of {smallest:g}",
            [
                unmoved("Pearson", by_separation[smallest]),
                unmoved("Spearman", ranks[smallest]),
            ],
        ),
        agreeing(
            f"{classifier}: it is above 0 at a separation of {largest:g}",
            [above("Pearson", by_separation[largest]), above("Spearman", ranks[largest])],
        ),
    ]


def _agreement(checks: list[list[Finding]]) -> Agreement:
    every = [finding for each in checks for finding in each]
    if all(finding.result in ("held", "not refuted") for finding in every):
        return "yes"
    return "partly" if any(rises.result == "held" for rises, *_ in checks) else missed(every)
