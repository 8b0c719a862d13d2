"""What the page of a study says first where the study is a paper's experiment: the claim."""

from __future__ import annotations

import dataclasses

from ...pages.content import Figure, IntervalEstimate, Part, Section, Table, Text
from ...pages.study_sections import LeadingSections, Rows
from ...study.settings.definition import Study
from ..experiment import Experiment, Outcome
from ..judging.judgement import Judgement, judge
from .claim_tables import claim_table, paper_values_table

CLAIM_PARTS = "The claim, part by part"
INTERVALS = (
    "The intervals are 95 % intervals over runs; a dash stands where n is too small for one."
)


def claim_first(study: Study, rows: Rows) -> LeadingSections | None:
    """The paper's claim and what these runs say about it; None for any other study."""
    judgement = judge(study, rows)
    if judgement is None:
        return None
    return LeadingSections(
        title=judgement.title,
        lead=f"The claim: {judgement.verdict}. {judgement.conclusion}",
        sections=[claim_section(judgement)],
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
        "experiment",
        f"The paper's claim: {judgement.verdict}",
        [Text(first), *parts, Text(last)],
    )


def _outcome_parts(experiment: Experiment, outcome: Outcome) -> list[Part]:
    rule = f"When it counts as reproduced: {experiment.rule}"
    remarks = {"Here": outcome.conclusion, "Left out": outcome.left_out, "Why": outcome.why}
    parts: list[Part] = [
        Text([f"{word}: {text}" for word, text in remarks.items() if text]),
        _named("findings", _as_text(claim_table(outcome.findings)), CLAIM_PARTS, rule),
        _named("numbers", outcome.table, "The numbers", INTERVALS),
    ]
    if isinstance(outcome.figure, Figure):
        title = experiment.title[:1].upper() + experiment.title[1:]
        parts.append(dataclasses.replace(outcome.figure, id="experiment-figure", title=title))
    if experiment.paper_values:
        values = paper_values_table(experiment, outcome)
        parts.append(_named("beside", values, values.title, INTERVALS))
    for place, more in enumerate(outcome.more, start=1):
        parts.append(_named(f"more-{place}", more, more.title, more.caption))
    return parts


def _as_text(table: Table) -> Table:
    """With estimates as text: what was seen of different parts cannot be sorted by value."""
    rows = [[str(c) if isinstance(c, IntervalEstimate) else c for c in row] for row in table.rows]
    return dataclasses.replace(table, rows=rows)


def _named(name: str, table: Table, title: str, caption: str) -> Table:
    return dataclasses.replace(table, id=f"experiment-{name}", title=title, caption=caption)
