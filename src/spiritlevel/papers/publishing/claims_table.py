"""All parts of all claims in one table: the paper's number beside ours, and the verdict."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from ...content import Cell, IntervalEstimate, Table, plain
from ..judging.findings import Finding
from .render import ScaleResult

TITLES = ("experiment", "part of the claim", "paper", "here", "95 % interval", "n", "settings")
CAPTION = (
    "One line for each part of a claim, by the result nearest to the paper of those that can be "
    "judged. A number has an "
    "interval, over settings where networks of one setting are repeated and over runs or pairs of "
    "runs elsewhere; the column settings says how many there are. Paper: its number for the same "
    "quantity, where it prints one."
)


def claims_table(results: Iterable[ScaleResult]) -> Table:
    """One row per part."""
    rows: list[Sequence[Cell]] = [
        [result.experiment.name, finding.part, *_cells(finding), finding.result]
        for result in results
        for finding in result.outcome.findings
    ]
    return Table((*TITLES, "verdict"), rows)


def _cells(finding: Finding) -> list[Cell]:
    paper = None if finding.paper is None else plain(finding.paper)
    number = finding.number
    if number is None and isinstance(finding.seen, IntervalEstimate):
        number = finding.seen
    if number is None:
        return [paper, str(finding.seen), None, None, finding.clusters]
    ends = None
    if not math.isnan(number.low):
        ends = f"[{plain(number.low, 3)}, {plain(number.high, 3)}]"
    return [paper, plain(number.value, 3), ends, number.n, finding.clusters]
