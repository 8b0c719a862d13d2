"""What a study found, in a terminal of any width: a paper's claim, three lines, and a table."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rich import box
from rich.console import Console
from rich.table import Table

from spiritlevel.cli import console
from spiritlevel.cli.console import note, show, tell

from ..pages.study_answer import StudyAnswer, in_words, short_p, strength
from ..papers.judgement import Judgement
from ..papers.study_section import claim_table
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
    shown = None if found is None else found.judged.cell
    if found is None or shown is None:
        return "–"
    p = "" if math.isnan(found.p) else f", p {short_p(found.p)}"
    star = "*" if found.is_clear else ""
    return f"{shown.shown}{star}{p}{between}{shown.interval or 'no interval'}"


def print_claim(console: Console, judged: Judgement) -> None:
    """Print source, claim, verdict and the parts of the claim; or what is missing to judge it."""
    tell(console, judged.source)
    tell(console, judged.experiment.claim, bold="The claim: ")
    tell(console, judged.conclusion, bold=f"Here: {judged.verdict}. ")
    for text in judged.missing:
        tell(console, text, mark="  • ")
    if judged.outcome is not None:
        if judged.outcome.left_out:
            tell(console, judged.outcome.left_out, bold="Left out: ")
        if judged.outcome.why:
            tell(console, judged.outcome.why, bold="Why: ")
        console.print()
        _print_parts(console, judged)
        console.print()
    for text in (*judged.scale, judged.count):
        note(console, text)


def _print_parts(console: Console, judged: Judgement) -> None:
    assert judged.outcome is not None
    parts = claim_table(judged.outcome.findings)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), show_edge=False)
    first, here, seen = parts.headings
    table.add_column(first.title)
    table.add_column(here.title, no_wrap=True)
    table.add_column(seen.title)
    for row in parts.rows:
        table.add_row(*map(str, row))
    show(console, table)
