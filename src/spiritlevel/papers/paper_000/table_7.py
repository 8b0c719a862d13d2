"""Paper 000, Table 7: stop by the loss, by flatness, by both, or by the trend of flatness."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ..judging.experiment import Experiment, Outcome, Row
from ..judging.findings import Finding, fact, verdict
from ..recipes.recipe import outcome
from .tasks_stopping import EPOCHS, STOPPED


def analyse(experiment: Experiment, rows: Sequence[Row]) -> Outcome:
    """The rule on flatness against that on the loss; that it stops no run comes first."""
    found = outcome(experiment, rows, when=_when(rows, "trend"))
    findings = [_never([row[f"{STOPPED}/flatness"] == 1 for row in rows]), *found.findings]
    return dataclasses.replace(found, findings=findings, agrees=verdict(findings))


def _never(fired: Sequence[bool]) -> Finding:
    part = "the 2 % rule on flatness stops no run"
    if not fired:  # any statement is true of no runs
        return Finding(part, "undecided", "there is no run")
    return fact(part, not any(fired), f"stopped {sum(fired)} of {len(fired)} runs")


def _when(rows: Sequence[Row], rule: str) -> str:
    """At which epochs the rule stopped; runs that it did not stop do not count."""
    stopped = [row[f"{EPOCHS}/{rule}"] for row in rows if row[f"{STOPPED}/{rule}"] == 1]
    if not stopped:
        return ""
    first, last = min(stopped), max(stopped)
    return f", at epoch {first:g}" if first == last else f", between epochs {first:g} and {last:g}"
