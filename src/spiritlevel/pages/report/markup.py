"""Text and tables as HTML. Every word that comes from outside is escaped here."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Mapping

from ...ground.plain_text import visible
from ...records.content import Cell, Column, CorrelationCell, Table, Text, number

FILTERED = 6  # rows from which on a filter helps
TALL = 25  # rows from which on a table scrolls in its own box
SHORT = 28  # characters of a cell that should not be broken into lines
ABSENT = "–"

Links = Mapping[str, str]  # names of measures, and the ids of their cards


def escape(text: str) -> str:
    """For text and for quoted attributes; what a browser would obey is shown as an escape."""
    return html.escape(visible(text, keep="\t\n"), quote=True)


def linked(text: str, links: Links) -> str:
    """A sentence in which the names of measures lead to their cards."""
    if not links:
        return escape(text)
    longest_first = sorted(links, key=len, reverse=True)
    pattern = "|".join(re.escape(name) for name in longest_first)
    pieces = re.split(rf"(?<![\w.])({pattern})(?![\w])", text)
    return "".join(
        _link(piece, links) if index % 2 else escape(piece) for index, piece in enumerate(pieces)
    )


def _link(name: str, links: Links) -> str:
    breakable = re.sub(r"([._])", r"\1<wbr>", escape(name))  # a phone may break it after these
    return f'<a href="#{escape(links[name])}">{breakable}</a>'


def paragraphs(text: Text, links: Links) -> str:
    """Paragraphs or a list."""
    tag = "li" if text.bullets else "p"
    inside = "\n".join(f"<{tag}>{linked(line, links)}</{tag}>" for line in text.paragraphs)
    return f"<ul>\n{inside}\n</ul>" if text.bullets else inside


def table(part: Table, links: Links, *, titled: bool = True) -> str:
    """A table with its tools; `titled` is off where a figure above says what it holds."""
    title = f"<h3>{escape(part.title)}</h3>" if titled and part.title else ""
    caption = f'<p class="caption">{linked(part.caption, links)}</p>' if part.caption else ""
    numeric = [_is_numeric(part, column) for column in range(len(part.columns))]
    heads = "".join(
        f'<th scope="col" aria-sort="none"{_class(is_number)}{_help(column.help)}>'
        f'<button type="button" class="sort">{escape(column.title)}</button></th>'
        for column, is_number in zip(part.headings, numeric, strict=True)
    )
    body = "\n".join(
        "<tr>"
        + "".join(
            _cell(value, column, links, is_number=is_number, first=index == 0)
            for index, (value, column, is_number) in enumerate(
                zip(row, part.headings, numeric, strict=True)
            )
        )
        + "</tr>"
        for row in part.rows
    )
    tall = " tall" if len(part.rows) >= TALL else ""
    return f"""<div class="table" id="{escape(part.id)}">
<div class="table-head">{title}{_tools(part)}</div>
{caption}<div class="scroll{tall}" tabindex="0" role="region" aria-label="{escape(part.title)}">
<table>
<thead><tr>{heads}</tr></thead>
<tbody>
{body}
</tbody>
</table>
</div>
</div>"""


def _tools(part: Table) -> str:
    count = len(part.rows)
    search = ""
    if count >= FILTERED:
        name = escape(f"Filter the rows of {part.title}")
        search = (
            f'<input type="search" placeholder="Filter rows" aria-label="{name}">'
            f'<span class="count" role="status">{count} rows</span>'
        )
    return (
        f'<div class="tools">{search}'
        '<button type="button" data-csv="copy">Copy CSV</button>'
        '<button type="button" data-csv="download">Download CSV</button></div>'
    )


def _is_numeric(part: Table, column: int) -> bool:
    given = [row[column] for row in part.rows if row[column] is not None]
    return bool(given) and all(_is_number(value) for value in given)


def _is_number(value: Cell) -> bool:
    return isinstance(value, int | float | CorrelationCell) and not isinstance(value, bool)


def _cell(value: Cell, column: Column, links: Links, *, is_number: bool, first: bool) -> str:
    tag, scope = ("th", ' scope="row"') if first else ("td", "")
    if value is None:
        kind = "absent number" if is_number else "absent"
        return f'<{tag}{scope} class="{kind}">{ABSENT}</{tag}>'
    if isinstance(value, bool):
        return f'<{tag}{scope} class="short">{"yes" if value else "no"}</{tag}>'
    if isinstance(value, int | float):
        shown = number(value, column.digits)
        return f'<{tag}{scope} class="number" data-value="{_exactly(value)}">{shown}</{tag}>'
    if isinstance(value, CorrelationCell):
        ends = f'data-low="{_exactly(value.low)}" data-high="{_exactly(value.high)}"'
        return (
            f'<{tag}{scope} class="number" data-value="{_exactly(value.value)}" {ends}>'
            f"{value.shown}<small>{value.interval}</small></{tag}>"
        )
    text = str(value)
    kind = "short" if len(text) <= SHORT else "words"
    return f'<{tag}{scope} class="{kind}">{linked(text, links)}</{tag}>'


def _exactly(value: float) -> str:
    """Every digit, as JavaScript reads it."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return repr(value)


def _class(is_number: bool) -> str:
    return ' class="number"' if is_number else ""


def _help(text: str) -> str:
    return f' data-help="{escape(text)}"' if text else ""
