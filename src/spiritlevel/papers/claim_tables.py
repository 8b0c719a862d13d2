"""A paper's claim as tables: its parts, and the paper's numbers beside ours."""

from __future__ import annotations

from collections.abc import Sequence

from ..pages.content import Cell, Table
from .judging.experiment import Experiment, Outcome
from .judging.findings import Finding


def claim_table(findings: Sequence[Finding]) -> Table:
    """The claim, part by part, and what the runs say about each."""
    rows = [[finding.part, finding.result, finding.seen] for finding in findings]
    return Table(("part of the claim", "here", "seen"), rows)


def paper_values_table(experiment: Experiment, outcome: Outcome) -> Table:
    """The numbers that the paper gives, beside those of these runs."""
    rows: list[list[Cell]] = []
    for name, value in experiment.paper_values.items():
        ours = outcome.beside.get(name)
        rows.append([name, value, ours, None if ours is None else ours.n])
    return Table(("what", "paper", "here", "n"), rows, title="Beside the paper's numbers")
