"""The page of a comparison: ranks as far as they are certain, and what explains them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from ...measures.confounders import GINI, MEASURED_ALONG
from ...records.content import Cell, Chart, Column, Page, Part, Section, Table, Text
from ...results import Measurement
from ...verbs.comparison import Comparison, sentences
from . import numbers
from .measurement import MEASURE

CAVEAT = (
    "These are the networks you gave, on these samples. Whether the flatter one generalizes better "
    "is another question, which a study of many networks answers."
)


def page_of(comparison: Comparison, *, title: str = "") -> Page:
    """The page of several networks side by side."""
    settings = next(iter(comparison.reports.values())).settings
    lead, *more = comparison.summary()
    known = numbers.subject_of(settings)
    shared = {name: known[name] for name in ("model", "data") if name in known}
    reading = Text(comparison.reading(), bullets=True)
    return Page(
        title=title or f"{len(comparison.reports)} networks side by side",
        lead=lead,
        highlights=[*more, CAVEAT] if comparison.ranked else more,
        facts=shared | {"samples (n)": f"{int(settings['num_samples']):,}"},
        settings=numbers.settings_of(settings),
        sections=[
            Section("ranking", "The ranking", [_points(comparison), _ranking(comparison)]),
            Section("pairs", "Pair by pair", _pairs(comparison)),
            Section("ranks", "All measures", [*comparison.rank_tables(), reading]),
            Section("confounders", "What else differs", _confounders(comparison)),
            Section("numbers", "All numbers", [_numbers(comparison)]),
            *numbers.about(comparison.measures),
        ],
    )


def _ranking(comparison: Comparison) -> Table:
    """One row per network, flattest first: its rank, its value, and how well it does."""
    table = comparison.ranking_table()
    checkpoints = {
        name: report.settings.get("subject", {}).get("checkpoint")
        for name, report in comparison.reports.items()
    }
    return dataclasses.replace(
        table,
        columns=[*table.columns, Column("checkpoint")],
        rows=[[*row, checkpoints[str(row[0])]] for row in table.rows],
        id="ranking-table",
        title="From flat to sharp",
        caption="Rank 1 is the flattest; brackets hold the ranks that the errors leave open.",
    ).filled()


def _pairs(comparison: Comparison) -> list[Part]:
    """Who is flatter by what, for every two networks."""
    pairs = comparison.pairs()
    if not pairs:
        return [Text(["No measure that was taken may rank these networks."])]
    measure = comparison.ranked[0]

    def named(measures: Iterable[str]) -> str | None:
        return ", ".join(sorted(measures)) or None

    rows: list[list[Cell]] = [
        [
            pair.first,
            pair.second,
            " / ".join(sentences.apart(pair.values[measure], fewest=4)),
            named(pair.flatter_by),
            named(pair.sharper_by),
            named(pair.open),
            named(pair.by_confidence),
            sentences.others(pair) or None,
        ]
        for pair in pairs
    ]
    columns = [
        Column("network"),
        Column("other network"),
        Column(measure, "Of both, at the confidence that they are compared at."),
        Column("the first is flatter by", "Beyond the errors of both."),
        Column("the other is flatter by", "Beyond the errors of both."),
        Column("not separated by"),
        Column("only confidence", "Measures whose order is lost or reversed by equal confidence."),
        Column("also differ in", "Beyond their errors. No cause is claimed."),
    ]
    how = "at equal confidence" if comparison.matched_pairs is not None else "as the networks are"
    title = f"Every two networks, {how}"
    return [Table(columns, rows, id="pair-table", title=title).filled()]


def _points(comparison: Comparison) -> Chart:
    """The values, the measure of the headline first."""
    series = [
        _series(comparison, measure)
        for measure in dict.fromkeys([*comparison.ranked, *comparison.measures])
    ]
    rows: list[list[Cell]] = [
        [one["name"], name, state, *ends]
        for one in series
        for state, points in one["states"].items()
        for name, *ends in zip(one["names"], *points.values(), strict=True)
    ]
    columns = [MEASURE, *map(Column, ("network", "measured", "value", "from", "to"))]
    matched = (
        " Hollow marks: the same networks at the confidence of the least confident one. The ranks "
        "compare each two at the confidence of the less confident of them."
        if any(len(one["states"]) > 1 for one in series)
        else ""
    )
    return Chart(
        "points",
        "Values with their errors",
        "points",
        {"label": "Measure", "series": series},
        Table(columns, rows, id="points-table", title="Values with their errors"),
        "Whiskers combine the errors of the method and of the data, for each network." + matched,
    )


def _series(comparison: Comparison, measure: str) -> dict[str, Any]:
    answer = comparison.answer()
    names = list(comparison.reports) if answer is None else answer.names
    states = {"as it is": [comparison.value(measure, name) for name in names]}
    if comparison.matched_pairs and measure in comparison.ranked and GINI in comparison.measures:
        least = max(names, key=lambda name: comparison.value(GINI, name).value)
        states["at equal confidence"] = [
            comparison.side_by_side(measure, name, least, matched=True)[0] for name in names
        ]
    return {
        "name": measure,
        "names": names,
        "states": {state: _ends(measurements) for state, measurements in states.items()},
    }


def _ends(measurements: list[Measurement]) -> dict[str, list[float | None]]:
    ends = [numbers.with_data(m) or (None, None) for m in measurements]
    return {
        "values": [m.value for m in measurements],
        "low": [low for low, _ in ends],
        "high": [high for _, high in ends],
    }


def _confounders(comparison: Comparison) -> list[Part]:
    present = [name for name in MEASURED_ALONG if name in comparison.measures]
    if not present:
        return [Text(["No confounder could be measured on all of these networks."])]
    columns = [Column("what"), MEASURE, *(Column(name) for name in comparison.reports)]
    rows: list[list[Cell]] = [
        [MEASURED_ALONG[name], name]
        + [comparison.value(name, network).value for network in comparison.reports]
        for name in present
    ]
    intro = (
        "These are not flatness measures, but flatness numbers depend on them: a difference in "
        "flatness between networks that differ in them may be one of these."
    )
    return [
        Text([intro]),
        Table(columns, rows, id="confounder-table", title="Confounders"),
    ]


def _numbers(comparison: Comparison) -> Table:
    rows: list[list[Cell]] = [
        [measure, name, *numbers.cells(comparison.value(measure, name))]
        for measure in comparison.measures
        for name in comparison.reports
    ]
    columns = [MEASURE, Column("network"), *numbers.SHORT_COLUMNS]
    title = "Every measure of every network"
    return Table(columns, rows, id="all-numbers", title=title).filled()
