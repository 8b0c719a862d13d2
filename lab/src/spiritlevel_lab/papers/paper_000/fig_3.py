"""Paper 000, Fig. 3 (b): does the bound of its Theorem 4 lie above every generalization gap?"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from spiritlevel.records.content import Cell, Figure, Panels, Series, Table

from ...claims.experiment import Experiment, Outcome, Row
from ...claims.findings import above, fact, verdict, with_added
from ...claims.numbers import plain
from ...claims.population import GAP
from ...claims.rows import column
from ...claims.settings import judged_of
from ..recipes.figures import density, marks
from ..recipes.runs import drawn
from .table_3 import FLATNESS, HEAD, by_optimizer_and_rate

BOUND = "bound.generalization"
LOOSE = 10.0  # times the gap, from which on a bound says nothing about it


def analyse(experiment: Experiment, rows: Sequence[Row]) -> Outcome:
    """How many gaps the bound covers, by how much it exceeds them, and whether it follows them."""
    known = [row for row in rows if row.get(BOUND) is not None and math.isfinite(row[BOUND])]
    positive = [row for row in known if row[GAP] > 0]
    covered = sum(row[BOUND] >= row[GAP] for row in positive)
    follows = judged_of(known, BOUND, GAP, experiment.settings)
    findings = [
        fact(
            "the bound lies above the gap of every network",
            covered == len(positive) if positive else None,
            f"above {covered} of {len(positive)} positive gaps",
        )
    ]
    added = [above("where the bound is larger, the gap is (rank correlation)", follows)]
    ratios = [row[BOUND] / row[GAP] for row in positive]
    return Outcome(
        table=_table(known),
        figure=_figure(known),
        findings=[*findings, *added],
        agrees=with_added(verdict(findings), added) if known else "undecided",
        conclusion=(
            f"The bound lies above {covered} of {len(positive)} positive gaps. {_exceeds(ratios)}"
            f"Bound and gap have a rank correlation of {follows} over {follows.n} networks."
        ),
        why=_why(ratios),
    )


def _table(rows: Sequence[Row]) -> Table:
    cells: list[list[Cell]] = []
    for (optimizer, rate), group in by_optimizer_and_rate(rows).items():
        ratios = [row[BOUND] / row[GAP] for row in group if row[GAP] > 0]
        cells.append(
            [
                *(optimizer, f"{rate:g}", len(group)),
                *(plain(statistics.median(column(group, name))) for name in (HEAD, GAP, BOUND)),
                plain(min(ratios)) if ratios else None,
            ]
        )
    return Table(
        (
            *("optimizer", "learning rate", "n", f"{FLATNESS}, median", "gap, median"),
            *("bound, median", "smallest bound over the gap"),
        ),
        cells,
    )


def _figure(rows: Sequence[Row]) -> Panels | None:
    """The envelope, then the row of Fig. 8 that shows the same networks."""
    if not rows:
        return None
    shown = [row for row in rows if row[GAP] > 0 and row.get(HEAD) is not None]
    envelope = Figure(
        FLATNESS,
        "generalization gap and its bound",
        [
            Series("gap", column(shown, HEAD), column(shown, GAP)),
            Series("bound", column(shown, HEAD), column(shown, BOUND)),
        ],
        log_x=True,
        log_y=True,
        points=True,
        title="Fig. 3 (b)",
    )
    groups: dict[str, list[Row]] = {}
    for (optimizer, _), group in by_optimizer_and_rate(rows).items():
        groups.setdefault(optimizer, []).extend(group)
    shared = (groups, HEAD, GAP, FLATNESS, "generalization gap")
    return Panels(
        [
            envelope,
            marks(*shared, "Fig. 3 (a); Fig. 8, ResNet-18"),
            marks(*shared, "the same, logarithmic axis", log="x"),
            density(drawn(rows, HEAD, GAP), HEAD, FLATNESS, "density of flatness"),
        ],
        columns=2,
    )


def _exceeds(ratios: Sequence[float]) -> str:
    if not ratios:
        return ""
    return (
        f"It is {plain(min(ratios), 3)} to {plain(max(ratios), 3)} times the gap, "
        f"{plain(statistics.median(ratios), 3)} times in the middle. "
    )


def _why(ratios: Sequence[float]) -> str:
    if not ratios or min(ratios) < LOOSE:
        return ""
    return (
        f"A number that exceeds every gap at least {plain(min(ratios), 3)}-fold would lie above "
        "them whatever flatness is: that it covers them says nothing about flatness."
    )
