"""The page of an audit: which numbers mean anything for this network."""

from __future__ import annotations

import math

from ...measures.confounders import MEASURED_ALONG
from ...records.content import Cell, Chart, Column, Page, Part, Section, Table, Text
from ...symmetries import CONFIDENCE_ONLY
from ...verbs.audit import VALUE, WORDS, Audit, answers, cell
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
            Section("verdicts", "Verdicts", _verdicts(audit)),
            *_matrix(audit),
            Section("moves", "What was done to the network", _moves(audit)),
            Section("confounders", "What else differs between networks", _confounders(audit)),
            Section("numbers", "The numbers before any move", [before]),
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


def _verdicts(audit: Audit) -> list[Part]:
    rows: list[list[Cell]] = [
        [name, audit.original[name].value, verdict.kind, *answers(verdict), verdict.text]
        for name, verdict in audit.verdicts.items()
    ]
    columns = [
        MEASURE,
        VALUE,
        Column("verdict"),
        Column("scale", "Whether it changes under moves that keep the function."),
        Column("confidence", "Whether it changes with the size of the logits."),
        Column("in words"),
    ]
    title = "Can it be compared between networks?"
    present = {verdict.kind for verdict in audit.verdicts.values()}
    meanings = [f"{kind}: {text}." for kind, text in WORDS.items() if kind in present]
    return [Table(columns, rows, id="verdict-table", title=title), Text(meanings, bullets=True)]


def _matrix(audit: Audit) -> list[Section]:
    if not audit.moved:
        return []
    names, moves = list(audit.original), list(audit.moved)
    rows = [_change(audit, name, move) for name in names for move in moves]
    columns = [
        MEASURE,
        Column("move"),
        Column("before"),
        Column("after"),
        Column("factor", "after divided by before; infinite where it was 0 before"),
        Column("changed", "Whether it changed beyond its errors and round-off."),
    ]
    table = Table(columns, rows, id="matrix-table", title="Before and after every move")
    data = {
        "rows": names,
        "columns": moves,
        "powers": [[_power(audit, name, move) for move in moves] for name in names],
        "texts": [[cell(audit, n, move).replace("inf", "∞") for move in moves] for n in names],
        "before": [audit.original[name].value for name in names],
        "after": [[audit.after(name, move).value for move in moves] for name in names],
        "preserving": [move in audit.preserving for move in moves],
    }
    chart = Chart(
        "matrix",
        "Measure by move",
        "matrix",
        data,
        table,
        "The factor by which each number changed, the farthest from 1 of all draws. = means "
        "unchanged, ? means not decided within the error. Moves marked with * keep the predictions "
        "but change how confident they are. All others keep the function, so a number that changes "
        "there says nothing about the function.",
    )
    return [Section("factors", "What the moves did", [chart])]


def _change(audit: Audit, name: str, move: str) -> list[Cell]:
    before, after = audit.original[name].value, audit.after(name, move).value
    moved = audit.has_moved(name, move)
    outcome = "not decided" if moved is None else "yes" if moved else "no"
    return [name, move, before, after, audit.factor(name, move), outcome]


def _moves(audit: Audit) -> list[Part]:
    starred = {move: f"{move}*" if move in CONFIDENCE_ONLY else move for move in audit.moves}
    parts: list[Part] = [
        Text([f"{starred[move]}: {text}." for move, text in audit.moves.items()], bullets=True)
    ]
    further = [Text(audit.not_made(), bullets=True), Text(audit.not_tested())]
    return parts + [text for text in further if text.paragraphs]


def _confounders(audit: Audit) -> list[Part]:
    rows: list[list[Cell]] = [
        [MEASURED_ALONG[name], name, *numbers.cells(m)] for name, m in audit.confounders().items()
    ]
    intro = Text(
        [
            "These are not flatness measures, but flatness numbers depend on them. Where two "
            "networks differ in them, that alone may explain a difference in flatness."
        ]
    )
    columns = [Column("what"), MEASURE, *numbers.SHORT_COLUMNS]
    return [
        intro,
        Table(columns, rows, id="confounder-table", title="Confounders").filled(),
    ]


def _power(audit: Audit, name: str, move: str) -> float | None:
    """log10 of a factor; None where there is no change to colour, or none that has a logarithm."""
    factor = audit.factor(name, move)
    if not audit.has_moved(name, move) or factor <= 0:
        return None
    return math.log10(factor) if math.isfinite(factor) else None
