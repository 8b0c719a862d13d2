"""What a page consists of. Parts hold plain data; `page.render` alone writes HTML."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

FORMAT = "spiritlevel-page-1"
Cell = str | float | int | bool | None  # None is shown as a dash and sorted last


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of a table."""

    title: str
    help: str = ""  # shown when the title is pointed at or focused


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows that can be sorted by any column and filtered by a word; numbers sort as numbers."""

    id: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""


@dataclasses.dataclass(frozen=True)
class Figure:
    """A picture drawn in the browser from `data` by the script for its `kind`.

    `assets/kinds/KIND.js` registers `spiritlevel.kinds[KIND] = (element, data, theme) => …`. Data
    is JSON; a number that is not finite is null there. `table` holds the same numbers to read.
    """

    id: str
    title: str
    kind: str
    data: Mapping[str, Any]
    table: Table
    caption: str = ""  # what is seen, n, and how far it carries


@dataclasses.dataclass(frozen=True)
class Text:
    """Paragraphs; a list where `bullets`."""

    paragraphs: Sequence[str]
    bullets: bool = False


@dataclasses.dataclass(frozen=True)
class Cards:
    """The cards of measures, each folded up until it is asked for."""

    names: Sequence[str]


Part = Table | Figure | Text | Cards


@dataclasses.dataclass(frozen=True)
class Section:
    """A heading and what stands below it."""

    id: str
    title: str
    parts: Sequence[Part]


@dataclasses.dataclass(frozen=True)
class Page:
    """A whole report: `facts` (settings, versions, n) stand in a box at the top."""

    title: str
    lead: str  # the one sentence to take away
    facts: Mapping[str, str]
    sections: Sequence[Section]

    def to_dict(self) -> dict[str, Any]:
        """Everything in plain types, ready for JSON."""
        found: dict[str, Any] = finite(dataclasses.asdict(self))
        return {"format": FORMAT} | found


def finite(value: Any) -> Any:
    """The same in JSON's types: it has no nan or inf, which become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return value
