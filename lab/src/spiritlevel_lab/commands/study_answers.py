"""What a study found, in a terminal of any width: three lines, and its outcomes side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rich import box
from rich.console import Console
from rich.table import Table

from spiritlevel.cli import console

from ..pages.study_answer import StudyAnswer, cell_of, in_words, short_p, strength
from ..statistics import Association, Associations


def print_answer(page: Console, said: StudyAnswer, *, name: str = "") -> None:
    """What was found and why; then every measure with every outcome, the strongest first."""
    console.tell(page, said.found, bold=f"{name}: " if name else "")
    for line in said.sentences:
        console.tell(page, line)
    if said.best is None:
        return
    page.print()
    console.show(page, _table(said.outcomes, page.width))
    page.print()
    console.note(page, said.reading)


def _table(outcomes: Mapping[str, Associations], width: int) -> Table:
    """A row a measure. Where it is too wide, the interval stands below its number."""
    first = next(iter(outcomes.values()))
    names = sorted(first, key=lambda name: strength(first[name]), reverse=True)
    titles = [in_words(outcome) for outcome in outcomes]
    longest = max(map(len, names))
    is_wide = longest + len(titles) * 32 <= width
    is_narrow = longest + len(titles) * 18 > width
    between = " " if is_wide else "\n"
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    table.add_column("measure", no_wrap=not is_narrow, overflow="fold")
    for title in titles:
        table.add_column(title, min_width=14, overflow="fold")
    for name in names:
        cells = (_cell(found.get(name), between) for found in outcomes.values())
        table.add_row(name.replace(".", ".\n", 1) if is_narrow else name, *cells)
    return table


def _cell(found: Association | None, between: str) -> str:
    """ρ with its p after Holm's correction and its interval; a star where it is clear."""
    shown = None if found is None else cell_of(found.judged)
    if found is None or shown is None:
        return "–"
    p = "" if math.isnan(found.p) else f", p {short_p(found.p)}"
    star = "*" if found.is_clear else ""
    return f"{shown.shown}{star}{p}{between}{shown.interval or 'no interval'}"
