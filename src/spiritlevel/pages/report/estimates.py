"""Estimates in the tables of a page: the value in one column, its interval in the next."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from ...content import Cell, Column, IntervalEstimate, Table
from .markup import number


def intervals_apart(table: Table) -> Table:
    """The same table with every estimate in two columns, so that it can be sorted by its value."""
    given = [[row[place] for row in table.rows] for place in range(len(table.columns))]
    has_estimates = [any(isinstance(cell, IntervalEstimate) for cell in cells) for cells in given]
    if not any(has_estimates):
        return table
    columns: list[Column] = []
    split: list[Sequence[Cell]] = []
    for heading, cells, is_estimate in zip(table.headings, given, has_estimates, strict=True):
        columns.append(heading)
        split.append([value_of(cell) for cell in cells])
        if is_estimate:
            alone = sum(has_estimates) == 1
            columns.append(Column("95 % interval" if alone else f"95 % of {heading.title}"))
            split.append([_interval(cell) for cell in cells])
    return dataclasses.replace(table, columns=columns, rows=list(zip(*split, strict=True)))


def value_of(cell: Cell) -> Cell:
    """The number of an estimate; None where there is no number."""
    value = cell.value if isinstance(cell, IntervalEstimate) else cell
    return None if isinstance(value, float) and math.isnan(value) else value


def _interval(cell: Cell) -> str | None:
    if not isinstance(cell, IntervalEstimate) or math.isnan(cell.low):
        return None
    return f"[{number(cell.low)}, {number(cell.high)}]"
