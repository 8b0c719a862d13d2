"""The page of an audit: which numbers mean anything for this network."""

from __future__ import annotations

import math

from ...records.content import SHORT, Cell, Chart, Column, Page, Section, Table
from ...verbs.audit import FACTOR, Audit, cell
from . import numbers
from .measurement import MEASURE, layers, whole

TRUSTED = ("comparable", "confidence")


def page_of(audit: Audit, *, title: str = "") -> Page:
    """The page of one network's audit."""
    report = audit.original
    before = whole(report, numbers.SHORT_COLUMNS)
    return Page(
        title=title or "Which flatness numbers mean anything for this network",
        lead=_lead(audit),
        highlights=[text] if (text := numbers.warning(report.settings)) else [],
        facts=numbers.subject_of(report.settings),
        settings=numbers.settings_of(report.settings),
        sections=[
            *_matrix(audit),
            Section("verdicts", "Can it be compared between networks?", audit.describe()),
            Section("numbers", "The numbers before any transformation", [before]),
            *layers("layers", report.layers),
            *numbers.about(list(report)),
        ],
    )


def _lead(audit: Audit) -> str:
    if not audit.preserving:
        return "No symmetry was found, so nothing here can show that a number misleads."
    verdicts = {n: v for n, v in audit.verdicts.items() if v.kind != "confounder"}
    names = [name for name, verdict in verdicts.items() if verdict.kind in TRUSTED]
    moving = sum(verdict.kind == "scale" for verdict in verdicts.values())
    worth = f": {numbers.listing(names)}" if names else ""
    if len(verdicts) == 1:
        [verdict] = verdicts.values()
        return f"{numbers.listing(list(verdicts))}: {verdict.text}."
    changing = "1 changes" if moving == 1 else f"{moving} change"
    keep = "keeps its value" if len(names) == 1 else "keep their value"
    return (
        f"{len(names)} of {len(verdicts)} measures {keep} on copies that compute the "
        f"same function with other weights{worth}. {changing} although the function stays the same."
    )


def _matrix(audit: Audit) -> list[Section]:
    if not audit.moved:
        return []
    names, moves = list(audit.original), list(audit.moved)
    rows = [_change(audit, name, move) for name in names for move in moves]
    columns = [
        MEASURE,
        Column("transformation"),
        Column("before", digits=SHORT),
        Column("after", digits=SHORT),
        Column("factor", "after divided by before; infinite where it was 0 before", digits=FACTOR),
        Column("changed", "Whether it changed beyond its errors and round-off."),
    ]
    table = Table(columns, rows, id="matrix-table", title="Before and after every transformation")
    data = {
        "rows": names,
        "columns": moves,
        "powers": [[_power(audit, name, move) for move in moves] for name in names],
        "texts": [[cell(audit, n, move) for move in moves] for n in names],
        "before": [audit.original[name].value for name in names],
        "after": [[audit.after(name, move).value for move in moves] for name in names],
        "preserving": [move in audit.preserving for move in moves],
    }
    chart = Chart(
        "matrix",
        "Measure by transformation",
        "matrix",
        data,
        table,
        "The factor by which each number changed, the farthest from 1 of all draws. = means "
        "unchanged, ? means not decided within the error. Those marked with * keep the predictions "
        "but change how confident they are. All others keep the function, so a number that changes "
        "there says nothing about the function.",
    )
    return [Section("factors", "What the transformations did", [chart])]


def _change(audit: Audit, name: str, move: str) -> list[Cell]:
    before, after = audit.original[name].value, audit.after(name, move).value
    moved = audit.has_moved(name, move)
    outcome = "not decided" if moved is None else "yes" if moved else "no"
    return [name, move, before, after, audit.factor(name, move), outcome]


def _power(audit: Audit, name: str, move: str) -> float | None:
    """log10 of a factor; None where there is no change to colour, or none that has a logarithm."""
    factor = audit.factor(name, move)
    if not audit.has_moved(name, move) or factor <= 0:
        return None
    return math.log10(factor) if math.isfinite(factor) else None
