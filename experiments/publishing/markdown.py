"""Tables, figures and texts as Markdown. Every word that comes from outside is escaped here."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

from spiritlevel.ground.plain_text import visible
from spiritlevel.records.content import (
    Cell,
    Chart,
    Column,
    Figure,
    Notes,
    Panels,
    Part,
    Table,
    Text,
    plain,
)


def render(parts: Sequence[Part | Panels]) -> list[str]:
    """The blocks of Markdown that show these parts, one after another."""
    return [block for part in parts for block in _blocks(part)]


def _blocks(part: Part | Panels) -> list[str]:
    if isinstance(part, Table):
        title = [f"## {escape(part.title)}"] if part.title else []
        return [*title, *([escape(part.caption)] if part.caption else []), table(part)]
    if isinstance(part, Figure | Panels):  # drawn into a file that lies beside the page
        return [f"![{escape(part.title)}]({part.id}.svg)"]
    if isinstance(part, Chart):  # for browsers alone: its numbers stand for it
        return _blocks(part.table)
    if isinstance(part, Text):
        if part.bullets:
            return ["\n".join(f"- {_line(text)}" for text in part.paragraphs)]
        return [_line(text) for text in part.paragraphs]
    if isinstance(part, Notes):
        return [_line(text) for text in part.sentences]
    names = (visible(name).replace("`", "'") for name in part.names)
    return ["\n".join(f"- `spiritlevel show {name}`" for name in names)]


def table(part: Table) -> str:
    """Rows and headings alone, without title and caption."""
    lines = [
        [escape(column.title) for column in part.headings],
        ["---"] * len(part.columns),
        *([*map(cell_text, row, part.headings)] for row in part.rows),
    ]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def cell_text(cell: Cell, column: Column) -> str:
    """A number with its digits, an estimate with its interval, text escaped."""
    if cell is None:
        return "–"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, float):
        return plain(cell, column.digits or 4)
    if isinstance(cell, str):
        return escape(cell)
    return str(cell)


def escape(text: str) -> str:
    """Text that Markdown and HTML show as it is."""
    shown = html.escape(visible(" ".join(text.split())), quote=False)
    for mark in "\\`*_[]|~$":
        shown = shown.replace(mark, "\\" + mark)
    return shown


def _line(text: str) -> str:
    """Escaped text at the start of a line, where some marks would make a heading or a list."""
    return re.sub(r"^(?=[#+-])|^(\d+)(?=[.)] )", r"\1\\", escape(text))
