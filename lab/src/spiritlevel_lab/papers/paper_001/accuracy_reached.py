"""Which networks reached the training accuracy at which they are compared."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ...claims.contrasts import Groups
from ..experiment import Cell, Row, Table

OUTCOME, REACHED = "outcome", "train_accuracy"
TITLE = "of them reached the target training accuracy"


def how_many(rows: Sequence[Row]) -> int:
    """The number of runs that reached it; the others stopped at their last epoch, or diverged."""
    return sum(row[OUTCOME] == REACHED for row in rows)


def with_reached(table: Table, groups: Groups, not_asked: Collection[str] = ()) -> Table:
    """The table with another column after n: how many runs of each group reached the accuracy.

    Args:
        table: one row per group, n in its second column.
        groups: their runs, in the order of the rows.
        not_asked: groups without a target accuracy; their cells stay empty.
    """
    rows: list[list[Cell]] = [
        [name, n, None if name in not_asked else how_many(group), *cells]
        for (name, n, *cells), group in zip(table.rows, groups.values(), strict=True)
    ]
    first, second, *others = table.columns
    return Table((first, second, TITLE, *others), rows)
