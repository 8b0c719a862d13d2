"""Which networks reached the training accuracy they were to be compared at."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ..experiment import Cell, Row, Table
from ..judging.contrasts import Groups

OUTCOME, REACHED = "outcome", "train_accuracy"
TITLE = "of them reached the training accuracy asked for"


def how_many(rows: Sequence[Row]) -> int:
    """The others stopped at their last epoch, or diverged."""
    return sum(row[OUTCOME] == REACHED for row in rows)


def with_reached(table: Table, groups: Groups, not_asked: Collection[str] = ()) -> Table:
    """A table with a row a group, n in its second column: after n, how many reached it.

    Groups that were not asked to reach any have none.
    """
    rows: list[list[Cell]] = [
        [name, n, None if name in not_asked else how_many(group), *cells]
        for (name, n, *cells), group in zip(table.rows, groups.values(), strict=True)
    ]
    first, second, *others = table.columns
    return Table((first, second, TITLE, *others), rows)
