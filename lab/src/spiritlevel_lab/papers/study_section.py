"""What the page of a study says first where the study is a paper's experiment: the claim."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from spiritlevel.records.content import (
    Cell,
    Figure,
    IntervalEstimate,
    Panels,
    Part,
    Section,
    Table,
    Text,
)

from ..claims.experiment import Experiment, Outcome
from ..claims.findings import Finding
from ..pages.study_sections import LeadingSections, Rows
from ..population.settings.definition import Study
from .judgement import Judgement, judge

CLAIM = "The paper's claim"
CLAIM_PARTS = "The claim, part by part"
INTERVALS = (
    "The intervals are 95 % intervals, over runs unless a column names settings; a dash stands "
    "where n is too small for one."
)


def claim_first(study: Study, rows: Rows) -> LeadingSections | None:
    """The paper's claims and what these runs say about them; None for any other study."""
    judgements = judge(study, rows)
    if not judgements:
        return None
    first = judgements[0]
    return LeadingSections(
        title=first.title,
        lead=f"The claim: {first.verdict}. {first.conclusion}",
        sections=[claim_section(each) for each in judgements],
    )


def claim_section(judgement: Judgement) -> Section:
    """What the runs say about the paper's claim."""
    experiment = judgement.experiment
    first = [judgement.source, f"The claim: {experiment.claim}"]
    last = [f"What was done: {experiment.set_up}", *judgement.scale, judgement.count]
    parts: list[Part] = [Text([judgement.conclusion])]
    if judgement.outcome is not None:
        parts = _outcome_parts(experiment, judgement.outcome)
    if judgement.missing:
        parts.insert(1, Text(judgement.missing, bullets=True))
    return Section(
        _id(experiment),
        f"{experiment.source if experiment.rows_of else CLAIM}: {judgement.verdict}",
        [Text(first), *parts, Text(last)],
    )


def _outcome_parts(experiment: Experiment, outcome: Outcome) -> list[Part]:
    rule = f"When it counts as reproduced: {experiment.rule}"
    remarks = {"Here": outcome.conclusion, "Left out": outcome.left_out, "Why": outcome.why}
    start = _id(experiment)

    def named(name: str, table: Table, title: str, caption: str) -> Table:
        return dataclasses.replace(table, id=f"{start}-{name}", title=title, caption=caption)

    parts: list[Part] = [
        Text([f"{word}: {text}" for word, text in remarks.items() if text]),
        named("findings", _as_text(claim_table(outcome.findings)), CLAIM_PARTS, rule),
        *([] if outcome.outcomes is None else [_with_id(f"{start}-outcomes", outcome.outcomes)]),
        named("numbers", outcome.table, "The numbers", INTERVALS),
        *_figures(experiment, outcome.figure),
    ]
    if experiment.paper_values:
        values = paper_values_table(experiment, outcome)
        parts.append(named("beside", values, values.title, INTERVALS))
    for place, more in enumerate(outcome.more, start=1):
        parts.append(named(f"more-{place}", more, more.title, more.caption))
    return parts


def _with_id(name: str, table: Table) -> Table:
    return dataclasses.replace(table, id=name)


def _figures(experiment: Experiment, figure: Figure | Panels | None) -> list[Figure]:
    """The figures as a browser draws them: panels one after another."""
    name = f"{_id(experiment)}-figure"
    if isinstance(figure, Panels):
        return [
            dataclasses.replace(each, id=f"{name}-{place}")
            for place, each in enumerate(figure.figures, start=1)
        ]
    title = experiment.title[:1].upper() + experiment.title[1:]
    return [] if figure is None else [dataclasses.replace(figure, id=name, title=title)]


def _id(experiment: Experiment) -> str:
    """Of its section; one that looks at the runs of another has a section beside that one's."""
    return f"experiment-{experiment.name}" if experiment.rows_of else "experiment"


def _as_text(table: Table) -> Table:
    """With estimates as text: what was seen of different parts cannot be sorted by value."""
    rows = [[str(c) if isinstance(c, IntervalEstimate) else c for c in row] for row in table.rows]
    return dataclasses.replace(table, rows=rows)


def claim_table(findings: Sequence[Finding]) -> Table:
    """The claim, part by part, and what the runs say about each."""
    rows = [[finding.part, finding.result, finding.seen] for finding in findings]
    return Table(("part of the claim", "here", "seen"), rows)


def paper_values_table(experiment: Experiment, outcome: Outcome) -> Table:
    """The numbers that the paper gives, beside those of these runs."""
    rows: list[list[Cell]] = []
    for name, value in experiment.paper_values.items():
        ours = outcome.reproduced_values.get(name)
        rows.append([name, value, ours, None if ours is None else ours.n])
    return Table(("what", "paper", "here", "n"), rows, title="Beside the paper's numbers")
