"""What each measure says about the outcome: one table to read, one with every other number."""

from __future__ import annotations

import math
from collections.abc import Iterator

from spiritlevel.records.content import Cell, Column, CorrelationCell, Part, Section, Table, Text

from ...statistics import Correlation, MeasureStatistics, StudyStatistics
from ...statistics.levels import Within
from ...statistics.text import JUDGED, percent
from .study_words import interval, number, title

SIGNS = "; within settings its sign differs"
KINDS = {"spearman": "Spearman ρ", "pearson": "Pearson r", "kendall": "Kendall τ"}


def correlations(statistics: StudyStatistics, target: str) -> Section | None:
    """Coefficients with intervals, and what may be claimed from them; the strongest come first."""
    if not statistics.measures:
        return None
    rows = sorted(statistics.measures.values(), key=_strength, reverse=True)
    parts: list[Part] = [
        _verdicts(statistics, rows, target),
        Text(statistics.notes(), bullets=True),
        _others(statistics, rows),
    ]
    return Section("correlations-section", "Correlations", parts)


def _strength(row: MeasureStatistics) -> float:
    """A key for sorting: the size of Spearman's ρ; what has none comes last."""
    return -1.0 if math.isnan(row.spearman.value) else abs(row.spearman.value)


def _verdicts(statistics: StudyStatistics, rows: list[MeasureStatistics], target: str) -> Table:
    """Spearman's ρ on every level there is, and the verdict that rests on it."""
    level, given = percent(statistics.confidence), ", ".join(statistics.confounders)
    repeated = bool(statistics.settings)
    fewer = any(r.partial_spearman and r.partial_spearman.n != r.spearman.n for r in rows)
    left_out = len({r.spearman.excluded for r in rows}) > 1  # a note says what all lack
    # every column with the condition under which it says something
    columns = {
        Column("measure"): True,
        Column("ρ, all runs", f"Spearman's ρ with the {target}, and its interval"): True,
        Column("verdict", "Based on ρ, Holm's correction and the confounders"): True,
        Column("ρ between", "Of the means of the settings"): repeated,
        Column("ρ within", "Mean of the correlations within single settings"): repeated,
        Column("ρ given", f"With {given} held fixed"): bool(given),
        Column("p Holm", f"Corrected over {statistics.holm[JUDGED].num_tests} measures"): True,
        Column("n", "Runs it is based on"): True,
        Column("n given", "Runs that have every confounder"): fewer,
        Column(
            "out", "Left out: runs without a finite number for this measure or for the outcome"
        ): left_out,
    }
    wanted = list(columns.values())
    counted = (
        f"Below each ρ stands its {level} interval: over all runs it counts the "
        f"{statistics.settings} settings, each with several seeds, and not the runs. Between "
        "settings everything differs that the study varies; within one only the seed does."
        if repeated
        else f"Below each ρ stands its {level} interval."
    )
    return Table(
        [column for column, shown in columns.items() if shown],
        [
            [cell for cell, shown in zip(_verdict(row), wanted, strict=True) if shown]
            for row in rows
        ],
        id="correlations",
        title=f"What each measure says about the {target}",
        caption=f"{title(target)}. The strongest correlation comes first. {counted}",
    )


def _verdict(row: MeasureStatistics) -> list[Cell]:
    levels, given = row.levels.get("spearman"), row.partial_spearman
    inside = None if levels is None else levels.within
    return [
        row.name,
        _coefficient(row.judged),
        row.verdict + (SIGNS if levels is not None and levels.disagrees else ""),
        None if levels is None else _coefficient(levels.between),
        None if inside is None else _coefficient(inside),
        None if given is None else _coefficient(given),
        _short(row.holm.get(JUDGED)),
        row.spearman.n,
        None if given is None else given.n,
        row.spearman.excluded,
    ]


def _others(statistics: StudyStatistics, rows: list[MeasureStatistics]) -> Table:
    """The other coefficients and intervals, a row each: as columns they would be too many."""
    columns = [
        Column("measure"),
        Column("coefficient"),
        Column("value", f"With its {percent(statistics.confidence)} interval by formula"),
        Column("bootstrap", "The interval of the bootstrap over runs (BCa)"),
        Column("p", "Before Holm's correction"),
        Column("n", "Runs; or settings, between and within them; or groups of settings"),
    ]
    return Table(
        columns,
        [[row.name, *cells] for row in rows for cells in _of_measure(row)],
        id="coefficients",
        title="Other coefficients and intervals",
        caption="Over all runs these intervals take the runs as independent, which makes them too "
        "narrow where settings are repeated. Settings that share a value, such as one optimizer, "
        "may be alike, too, and runs that share a seed: intervals over groups count those. To see "
        "one of them for all measures, type its name into the filter.",
    )


def _of_measure(row: MeasureStatistics) -> Iterator[list[Cell]]:
    for kind, name in KINDS.items():
        plain: Correlation = getattr(row, kind)
        again = row.bootstrap.get(kind)
        ends = None if again is None else interval(again)
        yield [f"{name}, all runs", _coefficient(plain), ends, _short(plain.p), plain.n]
        levels = row.levels.get(kind)
        of_groups = levels.shared if levels else row.shared if kind == "spearman" else {}
        for shared, found in of_groups.items():
            p, groups = _short(found.p), found.clusters
            yield [f"{name}, groups with the same {shared}", _coefficient(found), None, p, groups]
        if levels is None:
            continue
        between, within = levels.between, levels.within
        if kind != "spearman":  # whose levels are in the table above
            p = _short(between.p)
            yield [f"{name}, between settings", _coefficient(between), None, p, between.n]
            yield [f"{name}, within settings", _coefficient(within), None, None, within.n]
        positive = within.num_positive / within.n if within.n else None
        yield [f"{name}, settings where it is above 0", positive, None, None, within.n]
    psi, sign = row.granulated, row.sign_error
    yield ["Ψ: τ where one setting changes, mean", number(psi.value), None, None, row.spearman.n]
    yield ["sign error, worst setting", number(sign.robust), None, None, row.spearman.n]
    yield ["sign error, mean", number(sign.mean), None, None, row.spearman.n]


def _short(p: float | None) -> float | None:
    """A p-value with two digits, which is more than is known of it."""
    return None if p is None else number(float(f"{p:.2g}"))


def _coefficient(found: Correlation | Within) -> Cell:
    """The cell of a coefficient; None where it is not defined."""
    if math.isnan(found.value):
        return None
    return CorrelationCell(found.value, found.low, found.high)
