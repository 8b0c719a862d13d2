"""What each measure says about the target, what that rests on, and what nothing rests on."""

from __future__ import annotations

import math
from collections.abc import Iterator

from spiritlevel.records.content import Cell, Column, CorrelationCell, Part, Section, Table, Text

from ...statistics import (
    Correlation,
    Judged,
    MeasureStatistics,
    StudyStatistics,
    Within,
    associations,
)
from ...statistics.text import JUDGED, if_independent, percent
from ..study_answer import in_words, strength
from .study_words import number, title, two_digits

SIGNS = "; within settings its sign differs"
KINDS = {"spearman": "Spearman ρ", "pearson": "Pearson r", "kendall": "Kendall τ"}


def correlations(statistics: StudyStatistics, target: str) -> Section | None:
    """The number that judges each measure, with what weakens it; the strongest come first."""
    if not statistics.measures:
        return None
    rows = _strongest_first(statistics)
    notes = Text(statistics.notes(), bullets=True)
    parts: list[Part] = [_verdicts(statistics, rows, target), notes, _others(rows)]
    return Section("correlations-section", "What it rests on", parts)


def independent(statistics: StudyStatistics, target: str) -> Section | None:
    """All intervals and p that take the runs as independent, folded up."""
    if not statistics.measures:
        return None
    rows = _strongest_first(statistics)
    parts: list[Part] = [
        Text([if_independent(statistics)]),
        _coefficients(statistics, rows),
        _lines(statistics, target),
    ]
    return Section("independent-section", "If all runs were independent", parts, folded=True)


def _strongest_first(statistics: StudyStatistics) -> list[MeasureStatistics]:
    sizes = {name: strength(found) for name, found in associations(statistics).items()}
    return sorted(statistics.measures.values(), key=lambda row: sizes[row.name], reverse=True)


def _verdicts(statistics: StudyStatistics, rows: list[MeasureStatistics], target: str) -> Table:
    """Spearman's ρ on every level there is, and the verdict that rests on it."""
    level, given = percent(statistics.confidence), ", ".join(statistics.confounders)
    repeated = bool(statistics.settings)
    left_out = len({r.spearman.excluded for r in rows}) > 1  # a note says what all lack
    # every column with the condition under which it says something
    columns = {
        Column("measure"): True,
        Column("ρ", f"Spearman's ρ with the {in_words(target)}, and its interval"): True,
        Column("p Holm", f"Corrected over {statistics.holm[JUDGED].num_tests} measures"): True,
        Column("verdict", "Based on ρ, Holm's correction and the confounders"): True,
        Column("ρ given", f"With {given} held fixed"): bool(given),
        Column("ρ within", "Within single settings, between which nothing is compared"): repeated,
        Column("p within", "Of a permutation of runs within settings; not corrected"): repeated,
        Column("n", "Runs it is based on"): True,
        Column(
            "out", "Left out: runs without a finite number for this measure or for the outcome"
        ): left_out,
    }
    wanted = list(columns.values())
    return Table(
        [column for column, shown in columns.items() if shown],
        [
            [cell for cell, shown in zip(_verdict(row), wanted, strict=True) if shown]
            for row in rows
        ],
        id="correlations",
        title=f"Each measure with the {in_words(target)}",
        caption=f"{title(target)}. The strongest correlation comes first. Below a ρ stands its "
        f"{level} interval.",
    )


def _verdict(row: MeasureStatistics) -> list[Cell]:
    levels = row.levels.get("spearman")
    return [
        row.name,
        _coefficient(row.judged),
        two_digits(row.holm.get(JUDGED)),
        row.verdict + (SIGNS if levels is not None and levels.disagrees else ""),
        _coefficient(row.given),
        None if levels is None else _coefficient(levels.within),
        None if levels is None else two_digits(levels.within.p),
        row.judged.n,
        row.spearman.excluded,
    ]


def _others(rows: list[MeasureStatistics]) -> Table:
    """What has no interval."""
    columns = [
        Column("measure"),
        Column("ρ between", "Of the means of the settings"),
        Column("positive within", "Share of the settings within which ρ is above 0", digits=2),
        Column("Ψ", "τ where one setting changes, mean"),
        Column("sign error", "In the worst setting"),
        Column("sign error, mean"),
    ]
    found = [[row.name, *_other(row)] for row in rows]
    return Table(columns, found, id="others", title="Other statistics").filled()


def _other(row: MeasureStatistics) -> list[Cell]:
    levels, sign = row.levels.get("spearman"), row.sign_error
    within = None if levels is None else levels.within
    return [
        None if levels is None else _alone(levels.between.value),
        within.num_positive / within.n if within is not None and within.n else None,
        _alone(row.granulated.value),
        two_digits(sign.robust),
        two_digits(sign.mean),
    ]


def _coefficients(statistics: StudyStatistics, rows: list[MeasureStatistics]) -> Table:
    columns = [
        Column("measure"),
        Column("coefficient"),
        Column("value", f"With its {percent(statistics.confidence)} interval by formula"),
        Column("bootstrap", "The interval of the bootstrap over runs (BCa)"),
        Column("p", "Before Holm's correction"),
        Column("n"),
    ]
    cells = [[row.name, *each] for row in rows for each in _of_measure(row)]
    return Table(columns, cells, id="coefficients", title="Coefficients over all runs")


def _of_measure(row: MeasureStatistics) -> Iterator[list[Cell]]:
    for kind, name in KINDS.items():
        plain: Correlation = getattr(row, kind)
        again = row.bootstrap.get(kind)
        ends = (
            None if again is None else CorrelationCell(0.0, again.low, again.high).interval or None
        )
        yield [name, _coefficient(plain), ends, two_digits(plain.p), plain.n]


def _lines(statistics: StudyStatistics, target: str) -> Table:
    """The rows of Table 3 of Taleghani et al., a line for each measure."""
    columns = [
        Column("measure"),
        Column("slope", f"Of {target} ≈ slope · measure + intercept, by least squares", digits=3),
        Column("stderr (slope)", "Standard error", digits=2),
        Column("p (slope)"),
        Column("intercept", digits=3),
        Column("R²", "Share of the outcome's variance that the line explains", digits=2),
        Column("n"),
    ]
    rows: list[list[Cell]] = []
    for name, row in statistics.measures.items():
        line = row.regression
        slope = number(line.slope), number(line.slope_stderr), two_digits(line.p_slope)
        rows.append([name, *slope, number(line.intercept), number(line.r_squared), line.n])
    caption = (
        f"A straight line for each measure, {target} against measure, as in Table 3 of Taleghani "
        "et al."
    )
    return Table(columns, rows, id="regressions", title="Lines through the points", caption=caption)


def _alone(value: float) -> Cell:
    """A correlation of which no interval is shown."""
    return None if math.isnan(value) else CorrelationCell(value, math.nan, math.nan)


def _coefficient(found: Correlation | Judged | Within | None) -> Cell:
    """The cell of a coefficient; None where it is not defined."""
    if found is None or math.isnan(found.value):
        return None
    return CorrelationCell(found.value, found.low, found.high)
