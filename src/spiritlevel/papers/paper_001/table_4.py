"""Paper 001, Table 4: one epoch of noise at the end makes a network flatter, and no better."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ..judging.experiment import Experiment, Outcome, Row
from ..judging.findings import Agreement, Finding, missed
from ..judging.numbers import IntervalEstimate, mean
from ..judging.rows import column
from ..recipes.recipe import outcome
from .tasks_noise_finetuning import STANDARD, STRONG, TRAIN, WEAK


def analyse(experiment: Experiment, rows: Sequence[Row]) -> Outcome:
    """Each network after the epoch of noise against itself; one strength of noise is enough."""
    same = experiment.thresholds["same"]
    found = outcome(experiment, rows, fitted=_fitted(rows, same))
    weak, strong = found.findings[:2], found.findings[2:]
    return dataclasses.replace(found, agrees=_agreement([weak, strong]))


def _fitted(rows: Sequence[Row], same: float) -> str:
    """Whether these networks have the same training accuracy, as the claim requires."""
    accuracies = {
        stage: mean(column(rows, f"{TRAIN}/{stage}")) for stage in (STANDARD, WEAK, STRONG)
    }
    said = (
        f"The training accuracy is {accuracies[STANDARD]} in the standard networks, "
        f"{accuracies[WEAK]} after weak and {accuracies[STRONG]} after strong noise"
    )
    apart = [stage for stage in (WEAK, STRONG) if abs(_change(rows, stage).value) > same]
    if not apart:
        return f"{said}, the same within {same:g}."
    return (
        f"{said}: after {' and '.join(apart)} noise it is not the same (within {same:g}), as the "
        "claim would require."
    )


def _change(rows: Sequence[Row], stage: str) -> IntervalEstimate:
    return mean(row[f"{TRAIN}/{stage}"] - row[f"{TRAIN}/{STANDARD}"] for row in rows)


def _agreement(strengths: Sequence[Sequence[Finding]]) -> Agreement:
    """The better of both strengths; an unchanged accuracy counts only with a smaller trace."""
    flatter = [same for lower, same in strengths if lower.result == "held"]
    if flatter:
        return "yes" if any(f.result in ("held", "not refuted") for f in flatter) else "partly"
    refuted = all(missed(findings) == "no" for findings in strengths)
    return "no" if refuted else "undecided"
