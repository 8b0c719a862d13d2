"""Within settings, between settings and over all runs: the same correlation on three levels."""

from __future__ import annotations

import math

from ...study.statistics import Levels, StudyStatistics
from ...study.statistics.text import percent
from ..content import Cell, Column, Section, Table, Text
from .study_numbers import number
from .study_words import interval

KINDS = {"spearman": "Spearman ρ", "pearson": "Pearson r"}


def levels(statistics: StudyStatistics, target: str) -> Section | None:
    """A table for both kinds of correlation, and a sentence on each measure whose signs differ."""
    if not statistics.settings or not statistics.measures:
        return None
    tables = [_table(statistics, kind, target) for kind in KINDS]
    found = {name: row.levels["spearman"] for name, row in statistics.measures.items()}
    said = [f"{name}: {each.sentence}" for name, each in found.items() if each.disagrees]
    if not said:
        said = ["Of no measure do the signs within and between settings differ."]
    return Section(
        "levels-section", "Within and between settings", [Text(said, bullets=True), *tables]
    )


def _table(statistics: StudyStatistics, kind: str, target: str) -> Table:
    level = percent(statistics.confidence)
    columns = [
        Column("measure"),
        Column("n", "Runs"),
        Column("all runs", f"{KINDS[kind]} with the {target} over all runs"),
        Column(f"{level}, runs", "As if the runs were independent: too narrow"),
        Column(f"{level}, settings", "Leaves out each setting in turn, with all of its runs"),
        Column("between", "Of the means of the settings"),
        Column(f"{level}, between"),
        Column("within", "Mean of the correlations within single settings"),
        Column(f"{level}, within", "Student's interval over settings"),
        Column("positive within", "Settings within which it is above 0"),
        Column("signs", "Whether those within and between settings, or over all runs, differ"),
    ]
    rows = [[name, *_cells(row.levels[kind])] for name, row in statistics.measures.items()]
    return Table(
        columns,
        rows,
        id=f"levels-{kind}",
        title=f"{KINDS[kind]} within and between settings",
        caption=(
            f"{statistics.settings} settings, each with several seeds. Between settings everything "
            "differs that the study varies; within one only the seed does."
        ),
    )


def _cells(found: Levels) -> list[Cell]:
    inside = found.within
    ends = None
    if not math.isnan(inside.low):
        ends = f"[{inside.low:+.2f}, {inside.high:+.2f}]".replace("-", "−")
    return [
        found.pooled.n,
        number(found.pooled.value),
        interval(found.pooled),
        interval(found.clustered),
        number(found.between.value),
        interval(found.between),
        number(inside.value),
        ends,
        f"{inside.num_positive} of {inside.n}",
        "differ" if found.disagrees else "agree",
    ]
