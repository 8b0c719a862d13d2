"""The page of a comparison: ranks as far as they are certain, and what explains them."""

from __future__ import annotations

from typing import Any

from ...measures.confounders import MEASURED_ALONG
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
    ranks = sentences.ranking(
        comparison.measures, comparison.ranked, comparison.directions, comparison.of_these_samples
    )
    shared = {name: known[name] for name in ("model", "data") if name in known}
    return Page(
        title=title or f"{len(comparison.reports)} networks side by side",
        lead=lead,
        highlights=[*more, CAVEAT] if comparison.ranked else more,
        facts=shared | {"samples (n)": f"{int(settings['num_samples']):,}"},
        settings=numbers.settings_of(settings),
        sections=[
            Section("ranking", "The ranking", [_ranking(comparison)]),
            Section("pairs", "Pair by pair", _pairs(comparison)),
            Section("values", "Values", [_points(comparison)]),
            Section(
                "ranks", "All measures", [*comparison.rank_tables(), Text(ranks, bullets=True)]
            ),
            Section(
                "disagreements",
                "Where measures disagree, as the networks are",
                _disagreements(comparison),
            ),
            Section("explained", "What explains the differences", _explained(comparison)),
            Section("confounders", "What else differs", _confounders(comparison)),
            Section("numbers", "All numbers", [_numbers(comparison)]),
            *numbers.about(comparison.measures),
        ],
    )


def _ranking(comparison: Comparison) -> Table:
    """One row per network, flattest first: as it is, at equal confidence, and how well it does."""
    heading, *rows = comparison.ranking_rows()
    checkpoints = {
        name: report.settings.get("subject", {}).get("checkpoint")
        for name, report in comparison.reports.items()
    }
    columns = [Column(name) for name in [*heading, "checkpoint"]]
    cells: list[list[Cell]] = [[*row, checkpoints[row[0]]] for row in rows]
    caption = "# is the rank, 1 the flattest; brackets hold the ranks that the errors leave open."
    caption = caption if comparison.ranked else ""
    title = "From flat to sharp"
    return Table(columns, cells, id="ranking-table", title=title, caption=caption).filled()


def _pairs(comparison: Comparison) -> list[Part]:
    """Who is flatter by what, for every two networks."""
    if not comparison.ranked:
        return [Text([sentences.NO_RANKS])]
    rows: list[list[Cell]] = [
        [
            pair.first,
            pair.second,
            sentences.listing(pair.flatter_by) or None,
            sentences.listing(pair.sharper_by) or None,
            sentences.listing(pair.open) or None,
            sentences.others(pair) or None,
        ]
        for pair in comparison.pairs()
    ]
    columns = [
        Column("network"),
        Column("other network"),
        Column("the first is flatter by", "Beyond the errors of both."),
        Column("the other is flatter by", "Beyond the errors of both."),
        Column("undecided by"),
        Column("also differ in", "Beyond their errors. No cause is claimed."),
    ]
    how = "at equal confidence" if comparison.matched is not None else "as the networks are"
    title = f"Every two networks, {how}"
    return [Table(columns, rows, id="pair-table", title=title).filled()]


def _points(comparison: Comparison) -> Chart:
    series = [_series(comparison, measure) for measure in comparison.measures]
    rows: list[list[Cell]] = [
        [one["name"], name, state, *ends]
        for one in series
        for state, points in one["states"].items()
        for name, *ends in zip(one["names"], *points.values(), strict=True)
    ]
    columns = [MEASURE, *map(Column, ("network", "measured", "value", "from", "to"))]
    matched = (
        " Hollow marks: the same networks with their logits scaled until all are equally confident."
        if comparison.matched is not None
        else ""
    )
    return Chart(
        "points",
        "Values with their errors",
        "points",
        {"label": "Measure", "series": series},
        Table(columns, rows, id="points-table", title="Values with their errors"),
        "Whiskers combine the errors of the method and of the data, for each network. The table of "
        "ranks says which side is flatter, if any." + matched,
    )


def _series(comparison: Comparison, measure: str) -> dict[str, Any]:
    names = list(comparison.reports)
    states = {"as it is": [comparison.value(measure, name) for name in names]}
    matched = comparison.matched
    if matched is not None and all(name in matched and measure in matched[name] for name in names):
        states["at equal confidence"] = [matched[name][measure] for name in names]
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


def _disagreements(comparison: Comparison) -> list[Part]:
    grouped = sentences.opposed(comparison.disagreements())
    if not grouped:
        return [Text([sentences.NO_DISAGREEMENT])]
    rows: list[list[Cell]] = [
        [a, b, sentences.listing(one), sentences.listing(other)]
        for (a, b), (one, other) in grouped.items()
    ]
    titles = ("network", "other network", "the first is flatter by", "the first is sharper by")
    title = "Opposite orders beyond errors"
    return [Table([*map(Column, titles)], rows, id="disagreement-table", title=title)]


def _explained(comparison: Comparison) -> list[Part]:
    parts: list[Part] = []
    rows: list[list[Cell]] = [
        [e.measure, e.flatter, e.sharper, e.by, e.text] for e in comparison.explained()
    ]
    if rows:
        columns = [MEASURE, *map(Column, ("looks flatter", "than", "explained by", "because"))]
        title = "Differences that are not differences in flatness"
        parts.append(Table(columns, rows, id="explained-table", title=title))
    else:
        parts.append(Text(["No difference was found that scale or confidence accounts for."]))
    if unchecked := sentences.unchecked(comparison.unchecked()):
        parts.append(Text(unchecked))
    if comparison.unmatched:
        parts.append(Text([f"Not compared at equal confidence: {comparison.unmatched}"]))
    elif comparison.matched is None:
        parts.append(Text(["Equal confidence was not requested, so only scale was checked."]))
    return parts


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
        "These are not flatness measures, but flatness numbers depend on them. Where networks "
        "differ in them, read the section above before you trust a rank."
    )
    return [
        Text([intro]),
        Table(columns, rows, id="confounder-table", title="Confounders"),
        *_also_differing(comparison),
    ]


def _also_differing(comparison: Comparison) -> list[Part]:
    rows: list[list[Cell]] = [
        [
            d.measure,
            d.flatter,
            d.sharper,
            "; ".join(sentences.in_words(pair, d.flatter) for pair in d.confounders) or None,
            None if d.left is None else f"{d.left:.0%}",
        ]
        for d in comparison.also_differing()
    ]
    if not rows:
        return [Text(["Where one network is flatter than another, no confounder differs as well."])]
    columns = [
        MEASURE,
        Column("flatter"),
        Column("than"),
        Column("also differ", "Beyond their errors. No cause is claimed."),
        Column(
            "at equal confidence",
            "How much of the difference remains when the logits are scaled until all networks are "
            "equally confident; a dash where the order changes, or where this was not checked.",
        ),
    ]
    title = "Differences in flatness that other differences may explain"
    return [Table(columns, rows, id="also-differing-table", title=title)]


def _numbers(comparison: Comparison) -> Table:
    rows: list[list[Cell]] = [
        [measure, name, *numbers.cells(comparison.value(measure, name))]
        for measure in comparison.measures
        for name in comparison.reports
    ]
    columns = [MEASURE, Column("network"), *numbers.SHORT_COLUMNS]
    title = "Every measure of every network"
    return Table(columns, rows, id="all-numbers", title=title).filled()
