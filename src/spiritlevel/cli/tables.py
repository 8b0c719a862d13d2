"""What records tell, in a terminal: tables that fit 80 columns, with long notes below."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..records import content
from ..records.notebooks import shown_rows
from ..results import Measurement, Report, Status
from .console import note, show, tell

SHORT_NOTE = 22  # characters that still fit beside the numbers
COLUMNS = 5  # measures side by side in the table of layers
OF_A_GROUP = 3  # columns of a group side by side
LONG_TITLE = 6  # characters above which a title is broken between its words
NARROWEST = 12  # characters for a name, however wide the numbers are
INEXACT = "~"
KINDS = {Status.GGN: "of the GGN", Status.UNCONFIRMED: "not confirmed"}
Item = TypeVar("Item")


def print_parts(
    console: Console, parts: Iterable[content.Part], *, styles: Mapping[str, str] | None = None
) -> None:
    """Print what a record tells, blank lines between its parts; `styles` are those of words."""
    apart = False
    for part in parts:  # pictures and cards are for pages
        if isinstance(part, content.Notes):
            _print_notes(console, part)
        elif isinstance(part, content.Table) or (
            isinstance(part, content.Text) and part.paragraphs
        ):
            if apart:
                console.print()
            if isinstance(part, content.Table):
                _print_table(console, part, styles or {})
            else:
                _print_text(console, part)
            apart = True


def _print_text(console: Console, part: content.Text) -> None:
    mark = "• " if part.bullets else ""
    for paragraph in part.paragraphs:
        first, *more = paragraph.split("\n")
        tell(console, first, mark=mark)
        for line in more:
            tell(console, line.strip(), mark=" " * len(mark))


def _print_notes(console: Console, part: content.Notes) -> None:
    """Beside the result: what is said of it, and last what it cost."""
    for line in part.lines:
        note(console, line)
    note(console, f"counted: {part.passes} per sample over {part.samples} samples")


def _print_table(console: Console, part: content.Table, styles: Mapping[str, str]) -> None:
    """In as many tables as it takes, each with the columns that belong to no group.

    Numbers are never cut off; names of layers and weights in the first column give way to them.
    """
    rows, notes = shown_rows(part, SHORT_NOTE)
    columns = part.headings
    titles = [*map(_title, columns)]
    if part.names_rows:
        titles[0] = columns[0].title
    if columns[0].kind == "name":
        others = list(zip(titles, *rows, strict=True))[1:]
        room = console.width - 1 - sum(3 + max(map(_width, column)) for column in others)
        rows = [[_at_dots(name, max(room, NARROWEST)), *cells] for name, *cells in rows]
    for number, places in enumerate(_side_by_side(columns)):
        if number:
            console.print()
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), show_edge=False)
        for place in places:
            kind = "word" if place == 0 and part.names_rows else columns[place].kind
            table.add_column(
                titles[place],
                justify="right" if kind in ("number", "name") else "left",
                overflow="fold" if columns[place].kind == "name" else "ellipsis",
                no_wrap=columns[place].kind not in ("name", "note"),
            )
        of_group = [place for place in places if columns[place].group]
        for row in rows:
            if not of_group or any(row[place] for place in of_group):
                table.add_row(*(Text(row[place], styles.get(row[place], "")) for place in places))
        show(console, table)
    for text in notes:
        number_of, _, said = text.partition(" ")
        tell(console, said, mark=f"{number_of} ")
    for place, column in enumerate(columns):
        if column.help and any(row[place] for row in rows):
            note(console, f"{column.title} is {column.help}.")


def _title(column: content.Column) -> str:
    """In two lines where it is long."""
    if column.kind != "number" or len(column.title) <= LONG_TITLE or "." in column.title:
        return column.title
    return re.sub("[ _]", "\n", column.title, count=1)


def _width(text: str) -> int:
    return max(map(len, text.split("\n")))


def _at_dots(name: str, room: int) -> str:
    """The name in lines that fit, broken behind dots where there are some."""
    lines = [""]
    for part in re.findall(r"[^.]*\.?", name):
        if lines[-1] and len(lines[-1] + part) > room:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)


def _side_by_side(columns: Sequence[content.Column]) -> Iterator[list[int]]:
    """The places of the columns of each table."""
    kept = [i for i, column in enumerate(columns) if not column.wide]
    groups = list(dict.fromkeys(columns[i].group for i in kept if columns[i].group))
    if not groups:
        yield kept
    for group in groups:
        members = [i for i in kept if columns[i].group == group]
        for some in _in_pieces(members, OF_A_GROUP):
            yield [i for i in kept if i in some or not columns[i].group]


def _in_pieces(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def print_layers(console: Console, report: Report) -> None:
    """Print one row per layer, one column per measure; repeated columns are left out."""
    columns = distinct_columns(report.layers)
    names = list(columns)
    for shown in _in_pieces(names, COLUMNS):
        rows: list[list[content.Cell]] = []
        for layer in dict.fromkeys(layer for name in shown for layer in columns[name]):
            cells = (columns[name].get(layer) for name in shown)
            rows.append([layer, *(None if m is None else _cell(m) for m in cells)])
        console.print()
        titles = [name.replace(".", ".\n") for name in shown]
        columns_shown = [content.Column("layer", kind="name"), *map(content.Column, titles)]
        _print_table(console, content.Table(columns_shown, rows), {})
    inexact = [m for rows in columns.values() for m in rows.values() if not m.exact]
    if inexact:
        kinds = {KINDS.get(m.status, "estimated") for m in inexact}
        console.print(f"{INEXACT} not exact: {' or '.join(sorted(kinds))}, see the notes above")


def distinct_columns(
    layers: Mapping[str, Mapping[str, Measurement]],
) -> dict[str, Mapping[str, Measurement]]:
    """Columns without repetitions: a maximum over layers has the same values as its sum."""
    distinct: dict[str, Mapping[str, Measurement]] = {}
    seen: set[tuple[tuple[str, float], ...]] = set()
    for name, rows in layers.items():
        values = tuple((layer, m.value) for layer, m in rows.items())
        if values not in seen:
            seen.add(values)
            distinct[name] = rows
    return distinct


def _cell(m: Measurement) -> str:
    return f"{content.number(m.with_errors, content.SHORT)}{'' if m.exact else INEXACT}"
