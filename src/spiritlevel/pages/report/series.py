"""A figure as the interactive chart of a page."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from ...content import Cell, Chart, Column, Figure, Table, fitted_line
from .estimates import value_of
from .numbers import filled
from .study_words import LINE


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
    columns, points = filled([*map(Column, titles)], rows)
    table = Table(columns, points, id=f"{figure.id}-values", title="The points")
    notes = [figure.caption] if figure.caption else []
    if any(line.low is not None for line in figure.series):
        notes.append("Whiskers are 95 % intervals over runs.")
    if figure.fitted:
        notes.append("Lines are by least squares, one for the points of each name.")
    if len(figure.series) > 1:
        notes.append("A click on a name in the legend hides its points.")
    return Chart(figure.id, figure.title, "series", data, table, " ".join(notes))


def _at(values: Sequence[float] | None, place: int) -> Cell:
    return None if values is None else value_of(values[place])
