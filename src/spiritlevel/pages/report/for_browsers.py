"""Parts of a page as browsers get them: estimates in two columns, figures as interactive charts."""

from __future__ import annotations

import dataclasses
import math
import textwrap
from collections.abc import Sequence

from ...records.content import Cell, Chart, Column, Figure, IntervalEstimate, Part, Table
from ..fitted_line import fitted_line
from .markup import number

LINE = 44  # characters of a title along an upright axis


def for_browser(part: Part) -> Part:
    """The part as the scripts of a page know it."""
    if isinstance(part, Figure):
        return chart_of(part)
    return intervals_apart(part) if isinstance(part, Table) else part


def chart_of(figure: Figure) -> Chart:
    """Lines or marks with a legend, log axes to switch on, and a table of the points."""
    data = {
        "x_title": textwrap.wrap(figure.x_label, LINE),
        "y_title": textwrap.wrap(figure.y_label, LINE),
        "names": figure.names,
        "joined": not figure.points,
        "log_x": figure.log_x,
        "log_y": figure.log_y,
        "series": [
            {
                **{"name": each.name, "x": each.x, "y": each.y, "low": each.low, "high": each.high},
                "line": fitted_line(each.x, each.y, log_x=figure.log_x) if figure.fitted else None,
            }
            for each in figure.series
        ],
    }
    rows: list[list[Cell]] = [
        [line.name, x, *(_at(values, i) for values in (line.y, line.low, line.high))]
        for line in figure.series
        for i, x in enumerate(line.x)
    ]
    titles = ("line", figure.x_label, figure.y_label, "from", "to")
    table = Table(titles, rows, id=f"{figure.id}-values", title="The points").filled()
    notes = [figure.caption] if figure.caption else []
    if any(line.low is not None for line in figure.series):
        notes.append("Whiskers are 95 % intervals over runs.")
    if figure.fitted:
        notes.append("Lines are by least squares, one for the points of each name.")
    if len(figure.series) > 1:
        notes.append("A click on a name in the legend hides its points.")
    return Chart(figure.id, figure.title, "series", data, table, " ".join(notes))


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
        split.append([_value_of(cell) for cell in cells])
        if is_estimate:
            alone = sum(has_estimates) == 1
            columns.append(Column("95 % interval" if alone else f"95 % of {heading.title}"))
            split.append([_interval(cell) for cell in cells])
    return dataclasses.replace(table, columns=columns, rows=list(zip(*split, strict=True)))


def _at(values: Sequence[float] | None, place: int) -> Cell:
    return None if values is None else _value_of(values[place])


def _value_of(cell: Cell) -> Cell:
    """The number of an estimate; None where there is no number."""
    value = cell.value if isinstance(cell, IntervalEstimate) else cell
    return None if isinstance(value, float) and math.isnan(value) else value


def _interval(cell: Cell) -> str | None:
    if not isinstance(cell, IntervalEstimate) or math.isnan(cell.low):
        return None
    return f"[{number(cell.low)}, {number(cell.high)}]"
