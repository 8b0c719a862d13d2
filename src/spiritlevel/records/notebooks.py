"""How records look in a notebook, and the page that they become.

The pages themselves are made far above this. Whoever can make them registers here, and is imported
only when somebody asks for a page.
"""

from __future__ import annotations

import html
import os
from collections.abc import Sequence
from typing import Protocol

from ..ground import plugins
from ..ground.errors import SpiritlevelError
from ..ground.plain_text import visible


class PageWriter(Protocol):
    """Makes a page of a record: as text, or written to a path."""

    def __call__(self, record: object, path: str | os.PathLike[str] | None, *, title: str) -> str:
        """The page; `title` is its heading."""


_writers: list[PageWriter] = []


def register_page_writer(writer: PageWriter) -> None:
    """Have `to_html` of all records call this."""
    _writers[:] = [writer]


class Shown:
    """A record that shows itself in a notebook and can be written as a page."""

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

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


def table(heading: Sequence[str], rows: Sequence[Sequence[str]], below: Sequence[str]) -> str:
    """A table for a notebook, with lines of text below it; the first column is to the left.

    >>> table(["a", "b"], [["x<", "1"]], ["n = 2"]).count("&lt;")
    1
    """

    def line(cells: Sequence[str], tag: str) -> str:
        first, *rest = (html.escape(visible(cell)) for cell in cells)
        left, right = (f'<{tag} style="text-align:{side}">' for side in ("left", "right"))
        return f"<tr>{left}{first}</{tag}>" + "".join(f"{right}{c}</{tag}>" for c in rest) + "</tr>"

    body = "".join(line(row, "td") for row in rows)
    text = "".join(f"<div>{html.escape(visible(each))}</div>" for each in below)
    return f"<table><thead>{line(heading, 'th')}</thead><tbody>{body}</tbody></table>{text}"


def footnotes(texts: Sequence[str], longest: int) -> tuple[list[str], list[str]]:
    """Texts as they stand in a table, long ones as numbers in brackets, and the notes below it.

    >>> footnotes(["short", "a long text", "a long text"], longest=6)
    (['short', '[1]', '[1]'], ['[1] a long text'])
    """
    numbers: dict[str, int] = {}
    shown = [
        text if len(text) <= longest else f"[{numbers.setdefault(text, len(numbers) + 1)}]"
        for text in texts
    ]
    return shown, [f"[{number}] {text}" for text, number in numbers.items()]
