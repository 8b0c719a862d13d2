"""The part of a study's page that a paper's experiment has: its claim, and what came out here."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import Any

from ...papers import experiment as plain
from ...papers.experiment import Experiment, Outcome
from ...papers.judging.numbers import Estimate
from ...papers.publishing.render import beside, parts_of
from .markup import number
from .numbers import filled
from .parts import Cell, Column, Figure, Part, Section, Table, Text
from .study_judgement import Judgement
from .study_words import LINE

INTERVALS = (
    "The intervals are 95 % intervals over runs; a dash stands where n is too small for one."
)


def experiment(judged: Judgement) -> Section:
    """What the runs say about the paper's claim."""
    first = [judged.source, f"The claim: {judged.experiment.claim}"]
    last = [f"What was done: {judged.experiment.set_up}", *judged.scale, judged.count]
    parts: list[Part]
    if judged.outcome is None:
        parts = [Text([judged.conclusion]), Text(judged.missing, bullets=True)]
    else:
        parts = _said(judged.experiment, judged.outcome)
    return Section(
        "experiment",
        f"The paper's claim: {judged.verdict}",
        [Text(first), *parts, Text(last)],
    )


def _said(found: Experiment, outcome: Outcome) -> list[Part]:
    parts: list[Part] = [
        Text([f"Here: {outcome.conclusion}", *([f"Why: {outcome.why}"] if outcome.why else [])]),
        _table(
            "experiment-findings",
            "The claim, part by part",
            _worded(parts_of(outcome.findings)),
            f"When it counts as reproduced: {found.rule}",
        ),
        _table("experiment-numbers", "The numbers", outcome.table, INTERVALS),
    ]
    if outcome.figure is not None:
        parts.append(_figure(found, outcome.figure))
    if found.paper_values:
        pairs = beside(found, outcome)
        parts.append(_table("experiment-beside", "Beside the paper's numbers", pairs, INTERVALS))
    for place, more in enumerate(outcome.more, start=1):
        parts.append(_table(f"experiment-more-{place}", more.title, more.table, more.text))
    return parts


def _worded(found: plain.Table) -> plain.Table:
    """With estimates as text: what was seen of the parts of a claim is not to be compared."""
    rows = [[str(c) if isinstance(c, Estimate) else c for c in row] for row in found.rows]
    return plain.Table(found.columns, rows)


def _table(identifier: str, title: str, found: plain.Table, caption: str) -> Table:
    """An estimate takes two columns, so that the table can be sorted by its value."""
    given = [[row[place] for row in found.rows] for place in range(len(found.columns))]
    estimated = [any(isinstance(cell, Estimate) for cell in cells) for cells in given]
    titles: list[str] = []
    columns: list[list[Cell]] = []
    for name, cells, is_estimate in zip(found.columns, given, estimated, strict=True):
        titles.append(name)
        columns.append([_value(cell) for cell in cells])
        if is_estimate:
            titles.append("95 % interval" if sum(estimated) == 1 else f"95 % of {name}")
            columns.append([_interval(cell) for cell in cells])
    rows = list(zip(*columns, strict=True))
    return Table(identifier, title, list(map(Column, titles)), rows, caption)


def _value(cell: plain.Cell) -> Cell:
    value = cell.value if isinstance(cell, Estimate) else cell
    return None if isinstance(value, float) and math.isnan(value) else value


def _interval(cell: plain.Cell) -> str | None:
    if not isinstance(cell, Estimate) or math.isnan(cell.low):
        return None
    return f"[{number(cell.low)}, {number(cell.high)}]"


def _figure(found: Experiment, drawn: plain.Figure) -> Figure:
    data = {
        "x_title": textwrap.wrap(drawn.x_label, LINE),
        "y_title": textwrap.wrap(drawn.y_label, LINE),
        "joined": not drawn.points,
        "log_x": drawn.log_x,
        "log_y": drawn.log_y,
        "series": [
            {"name": each.name, "x": each.x, "y": each.y, "low": each.low, "high": each.high}
            for each in drawn.series
        ],
    }
    rows: list[list[Cell]] = [
        [each.name, x, *(_value(_at(values, i)) for values in (each.y, each.low, each.high))]
        for each in drawn.series
        for i, x in enumerate(each.x)
    ]
    titles = ("line", drawn.x_label, drawn.y_label, "from", "to")
    table = Table("experiment-figure-values", "The points", *filled([*map(Column, titles)], rows))
    said = []
    if any(each.low is not None for each in drawn.series):
        said.append("Whiskers are 95 % intervals over runs.")
    if len(drawn.series) > 1:
        said.append("A click on a name in the legend hides its points.")
    title = found.title[:1].upper() + found.title[1:]
    return Figure("experiment-figure", title, "series", data, table, " ".join(said))


def _at(values: Sequence[float] | None, place: int) -> Any:
    return None if values is None else values[place]
