"""How records look as text and in a notebook, and the page that they become.

The pages themselves are made far above this. Whoever can make them registers here, and is imported
only when somebody asks for a page.
"""

from __future__ import annotations

import abc
import html
import os
from collections.abc import Iterable, Sequence
from typing import ClassVar, Protocol

from ..ground import plugins
from ..ground.errors import SpiritlevelError
from ..ground.plain_text import visible
from .content import Cell, Column, Notes, Part, Table, Text, number

SHORT_NOTE = 40  # characters that stand beside a number; longer notes stand below the table


class PageWriter(Protocol):
    """Makes a page of a record: as text, or written to a path."""

    def __call__(self, record: object, path: str | os.PathLike[str] | None, *, title: str) -> str:
        """The page; `title` is its heading."""


_writers: list[PageWriter] = []


def register_page_writer(writer: PageWriter) -> None:
    """Have `to_html` of all records call this."""
    _writers[:] = [writer]


class Shown(abc.ABC):
    """A record that tells its content once; whoever shows it renders that."""

    HEADING: ClassVar[str]  # of its page

    @abc.abstractmethod
    def describe(self) -> list[Part]:
        """Sentences, tables, pictures, and notes on how they came about.

        A text that stands first is the answer: a page leads with its first sentence.
        """

    def __repr__(self) -> str:
        first = str(self).partition("\n")[0].rstrip(".")
        return f"{type(self).__name__}({first})"

    def __str__(self) -> str:
        return as_text(self.describe())

    def _repr_html_(self) -> str:
        return as_html(self.describe())

    def to_html(self, path: str | os.PathLike[str] | None = None, *, title: str = "") -> str:
        """The record as one self-contained page; written to `path`, if one is given.

        Needs `pip install 'spiritlevel[report]'`. `title` is the heading of the page.
        """
        plugins.load("spiritlevel.pages")
        if not _writers:
            raise SpiritlevelError(
                f"A page of this {type(self).__name__} needs the package spiritlevel to be "
                "installed, and not only found on the path. Install it with pip."
            )
        return _writers[0](self, path, title=title)


def as_text(parts: Iterable[Part]) -> str:
    """Tables and sentences below each other; notes stand right below what they belong to."""
    blocks: list[str] = []
    for part in parts:
        if isinstance(part, Notes) and blocks:
            blocks[-1] = "\n".join([blocks[-1], *_lines(part)])
        elif lines := _lines(part):
            blocks.append("\n".join(lines))
    return visible("\n\n".join(blocks), keep="\n")


def as_html(parts: Iterable[Part]) -> str:
    """Tables and sentences as a notebook shows them; all that comes from outside is text."""
    return "".join(map(_html, parts))


def shown_rows(table: Table, longest: int) -> tuple[list[list[str]], list[str]]:
    """The cells as text, notes longer than `longest` as numbers in brackets, and these notes.

    >>> columns = [Column("a"), Column("note", kind="note")]
    >>> shown_rows(Table(columns, [[1.5, "short"], [None, "a long text"]]), longest=6)
    ([['1.5', 'short'], ['', '[1]']], ['[1] a long text'])
    """
    numbers: dict[str, int] = {}

    def shown(cell: Cell, column: Column) -> str:
        text = cell_text(cell, column)
        if column.kind != "note" or len(text) <= longest:
            return text
        return f"[{numbers.setdefault(text, len(numbers) + 1)}]"

    rows = [[*map(shown, row, table.headings)] for row in table.rows]
    return rows, [f"[{number}] {text}" for text, number in numbers.items()]


def cell_text(cell: Cell, column: Column) -> str:
    """One cell as text; an empty one where there is nothing."""
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return number(cell, column.digits) if isinstance(cell, int | float) else str(cell)


def aligned(rows: Sequence[Sequence[str]], left: Iterable[int] = (0,)) -> str:
    """Columns under their headings: those at the places in `left` to the left, others to the right.

    >>> print(aligned([("measure", "a"), ("head.trace", "1.5")]))
    measure       a
    ---------------
    head.trace  1.5
    """
    return "\n".join(_ruled(rows, set(left)))


def _ruled(rows: Sequence[Sequence[str]], left: set[int], *, open_end: bool = False) -> list[str]:
    """`open_end` says that the last column may be wider than the rule below the heading."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    if open_end:
        widths[-1] = len(rows[0][-1])
    lines = []
    for row in rows:
        cells = (
            cell.ljust(width) if place in left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "-" * (sum(widths) + 2 * (len(widths) - 1)))
    return lines


def _lines(part: Part) -> list[str]:
    if isinstance(part, Table):
        rows, notes = shown_rows(part, SHORT_NOTE)
        columns = part.headings
        left = {i for i, column in enumerate(columns) if column.kind in ("mark", "note")}
        if part.names_rows:
            left.add(0)
        heading = [column.title for column in columns]
        return [*_ruled([heading, *rows], left, open_end=columns[-1].kind == "note"), *notes]
    return _sentences(part)


def _sentences(part: Part) -> list[str]:
    """Of texts and notes; pictures and cards are for pages."""
    if isinstance(part, Notes):
        return part.sentences
    return list(part.paragraphs) if isinstance(part, Text) else []


def _html(part: Part) -> str:
    if isinstance(part, Table):
        rows, notes = shown_rows(part, SHORT_NOTE)
        body = "".join(_html_row(row, "td") for row in rows)
        heading = _html_row([column.title for column in part.headings], "th")
        below = "".join(f"<div>{_escaped(note)}</div>" for note in notes)
        return f"<table><thead>{heading}</thead><tbody>{body}</tbody></table>{below}"
    tag = "li" if isinstance(part, Text) and part.bullets else "div"
    inside = "".join(f"<{tag}>{_escaped(line)}</{tag}>" for line in _sentences(part))
    return f"<ul>{inside}</ul>" if tag == "li" else inside


def _html_row(cells: Sequence[str], tag: str) -> str:
    first, *rest = map(_escaped, cells)
    left, right = (f'<{tag} style="text-align:{side}">' for side in ("left", "right"))
    return f"<tr>{left}{first}</{tag}>" + "".join(f"{right}{c}</{tag}>" for c in rest) + "</tr>"


def _escaped(text: str) -> str:
    return html.escape(visible(text))
