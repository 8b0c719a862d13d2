"""Every measure with every outcome: one interval and one p each, in the picture and its table."""

from __future__ import annotations

import math
from typing import Any

from spiritlevel.records.content import Cell, Chart, Column, Section, Table

from ...statistics import Association
from ..study_answer import StudyAnswer, cell_of, chance, in_words, strength
from .study_words import number, two_digits


def outcomes(said: StudyAnswer) -> Section | None:
    """Panels side by side, one for each outcome; the strongest measure stands on top."""
    if said.best is None:
        return None
    first = next(iter(said.outcomes.values()))
    names = sorted(first, key=lambda name: strength(first[name]), reverse=True)
    words = {outcome: in_words(outcome) for outcome in said.outcomes}
    panels = [
        _panel(words[outcome], [found.get(name) for name in names])
        for outcome, found in said.outcomes.items()
    ]
    columns = [Column("measure")]
    for word in words.values():
        columns += [Column(f"ρ, {word}"), Column(f"p, {word}", "After Holm's correction")]
    rows: list[list[Cell]] = [
        [name, *(cell for found in said.outcomes.values() for cell in _cells(found.get(name)))]
        for name in names
    ]
    caption = (
        "Spearman's ρ: a rank correlation, from −1 to 1 (0: unrelated). Lines are intervals, the "
        "widest of those that count what networks share; full circles are clear after Holm's "
        "correction."
    )
    table = Table(columns, rows, id="outcomes-values", title="Every measure with each outcome")
    data: dict[str, Any] = {"rows": names, "panels": panels}
    title = "Every measure with each outcome"
    chart = Chart("outcomes", title, "forest", data, table, caption)
    return Section("outcomes-section", "What the measures say", [chart])


def _panel(title: str, column: list[Association | None]) -> dict[str, Any]:
    cells = [None if found is None else cell_of(found.judged) for found in column]
    return {
        "title": title,
        "values": [None if cell is None else number(cell.value) for cell in cells],
        "low": [None if cell is None else number(cell.low) for cell in cells],
        "high": [None if cell is None else number(cell.high) for cell in cells],
        "clear": [found is not None and found.is_clear for found in column],
        "notes": ["" if found is None else _note(found) for found in column],
    }


def _note(found: Association) -> str:
    cell = cell_of(found.judged)
    if cell is None or math.isnan(found.p):
        return f"{'' if cell is None else f'ρ = {cell}, '}{found.judged.reason}"
    p = f"{chance(found.p)} after Holm's correction"
    return f"ρ = {cell}, {p}, n = {found.judged.n}; {found.judged.counted}"


def _cells(found: Association | None) -> tuple[Cell, Cell]:
    return (None, None) if found is None else (cell_of(found.judged), two_digits(found.p))
