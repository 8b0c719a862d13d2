"""A population's three outcomes side by side: what each measure says about each of them."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan

from spiritlevel.records.content import Cell, CorrelationCell, Table

from ..statistics import Judged, Within
from .experiment import Row, titled
from .rows import OUTCOMES, grouped
from .settings import judged_of, levels_of

WITHIN, OVER_ALL = "within settings", "over all"
CAPTION = (
    "Rank correlations. Each network has a gap of the losses, a gap of the accuracies and a test "
    "error, and they need not agree: the claim is judged by the one that its rule names, and the "
    "others stand beside it. {levels}A dash: not recorded."
)
LEVELS = (
    "Within settings: over seeds of one setting, with the interval of a permutation test. Over "
    "all: with the widest interval. "
)


def outcomes_table(
    rows: Sequence[Row], columns: Sequence[str], settings: Sequence[str] = (), by: str = ""
) -> Table:
    """A row per measure, and per value of `by`: its correlation with each outcome, each level."""
    groups = grouped(rows, by) if by else {"": rows}
    table: list[list[Cell]] = []
    repeated = False
    for name, group in groups.items():
        for measure in columns:
            if all(row.get(measure) is None for row in group):
                continue
            found = {target: _of(group, measure, target, settings) for target in OUTCOMES}
            repeated |= any(within is not None for within, _ in found.values())
            within, over_all = zip(*found.values(), strict=True)
            table.append([*([name] if by else []), measure, *within, *over_all])
    if not repeated:
        table = [[*row[: -2 * len(OUTCOMES)], *row[-len(OUTCOMES) :]] for row in table]
    levels = [f"{level}: {each}" for level in (WITHIN, OVER_ALL) for each in OUTCOMES.values()]
    titles = levels if repeated else list(OUTCOMES.values())
    return titled(
        "Three outcomes side by side",
        CAPTION.format(levels=LEVELS if repeated else ""),
        Table((*([by] if by else []), "measure", *titles), table),
    )


def _of(
    rows: Sequence[Row], measure: str, target: str, settings: Sequence[str]
) -> tuple[CorrelationCell | None, CorrelationCell | None]:
    """Within settings and over all; None where there is none."""
    if all(row.get(target) is None for row in rows):
        return None, None
    found = levels_of(rows, measure, target, settings)
    within = None if found is None or not found.within.n else cell(found.within)
    return within, cell(judged_of(rows, measure, target, settings))


def cell(found: Judged | Within) -> CorrelationCell | None:
    """A correlation as a table shows it."""
    return None if isnan(found.value) else CorrelationCell(found.value, found.low, found.high)
