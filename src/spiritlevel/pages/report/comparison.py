"""The page of a comparison: ranks as far as they are certain, and what explains them."""

from __future__ import annotations

import collections
from typing import Any

from ...analysis.comparison import Comparison
from ...analysis.comparison import findings as sentences
from ...measures.confounders import MEASURED_ALONG
from ...results import Measurement
from . import numbers
from .measurement import MEASURE
from .parts import Cards, Cell, Column, Figure, Page, Part, Section, Table, Text

FLATTER: dict[str | None, Cell] = {
    "smaller is flatter": "smaller",
    "larger is flatter": "larger",
    None: None,
}


def page_of(comparison: Comparison, *, title: str = "") -> Page:
    """The page of several networks side by side."""
    settings = next(iter(comparison.reports.values())).settings
    return Page(
        title=title or f"{len(comparison.reports)} networks side by side",
        lead=_lead(comparison),
        facts={"networks": ", ".join(comparison.reports)} | numbers.facts(settings),
        sections=[
            Section("ranks", "Ranks", [_ranks(comparison)]),
            Section("values", "Values", [_points(comparison)]),
            Section("disagreements", "Where measures disagree", _disagreements(comparison)),
            Section("explained", "What explains the differences", _explained(comparison)),
            Section("confounders", "What else differs", _confounders(comparison)),
            Section("numbers", "All numbers", [_numbers(comparison)]),
            Section(
                "caveats", "When these numbers mislead", [numbers.caveats(comparison.measures)]
            ),
            Section("cards", "The measures", [Cards(comparison.measures)]),
        ],
    )


def _lead(comparison: Comparison) -> str:
    ranked = comparison.ranked
    if not ranked:
        return "No measure of flatness was taken: nothing here says which network is flatter."
    certain = collections.Counter(
        name
        for measure in ranked
        for name, place in comparison.places(measure).items()
        if place.best == place.worst == 1
    )
    total = f"{len(ranked)} measures" if len(ranked) > 1 else "1 measure"
    if not certain:
        return f"By none of {total} is one network flatter than all others beyond the errors."
    said = numbers.listing(f"{name} by {number}" for name, number in certain.most_common())
    text = f"The flattest beyond all errors: {said} of {total}."
    count = len(comparison.explained())
    if count:
        one = "difference is" if count == 1 else "differences are"
        text += f" {count} {one} explained by scale or confidence, see below."
    return text


def _ranks(comparison: Comparison) -> Table:
    columns = [MEASURE, Column("flatter", "Which of two values is that of the flatter network.")]
    for name in comparison.reports:
        columns += [
            Column(name),
            Column(
                f"rank of {name}",
                "1 is the flattest; in brackets the ranks that errors leave open. No rank: not a "
                "measure of flatness.",
            ),
        ]
    rows: list[list[Cell]] = []
    for measure in comparison.measures:
        row: list[Cell] = [measure, FLATTER[comparison.directions.get(measure)]]
        places = comparison.places(measure)
        for name in comparison.reports:
            place = str(places[name]) if places else None
            row += [comparison.value(measure, name).value, place]
        rows.append(row)
    return Table("rank-table", "Value and rank of every network", columns, rows)


def _points(comparison: Comparison) -> Figure:
    series = [_series(comparison, measure) for measure in comparison.measures]
    rows: list[list[Cell]] = []
    for one in series:
        for state, points in one["states"].items():
            for name, value, low, high in zip(
                one["names"], points["values"], points["low"], points["high"], strict=True
            ):
                rows.append([one["name"], name, state, value, low, high])
    columns = [
        MEASURE,
        Column("network"),
        Column("measured"),
        Column("value"),
        Column("from"),
        Column("to"),
    ]
    matched = (
        " Hollow marks: the same networks with their logits scaled until all are equally confident."
        if comparison.matched is not None
        else ""
    )
    return Figure(
        "points",
        "Values with their errors",
        "points",
        {"label": "Measure", "series": series},
        Table("points-table", "Values with their errors", columns, rows),
        "Whiskers hold the errors of the method and of the data together, network by network; "
        "which side is flatter, and whether any is, stands in the table of ranks." + matched,
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
        "states": {state: _ends(found) for state, found in states.items()},
    }


def _ends(found: list[Measurement]) -> dict[str, list[float]]:
    ends = [numbers.with_data(m) for m in found]
    return {
        "values": [m.value for m in found],
        "low": [low for low, _ in ends],
        "high": [high for _, high in ends],
    }


def _disagreements(comparison: Comparison) -> list[Part]:
    grouped = sentences.opposed(comparison)
    if not grouped:
        return [Text(["No two measures order any two networks in opposite ways beyond errors."])]
    rows: list[list[Cell]] = [
        [a, b, sentences.listing(one), sentences.listing(other)]
        for (a, b), (one, other) in grouped.items()
    ]
    columns = [
        Column("network"),
        Column("other network"),
        Column("the first is flatter by"),
        Column("the first is sharper by"),
    ]
    return [Table("disagreement-table", "Opposite orders beyond errors", columns, rows)]


def _explained(comparison: Comparison) -> list[Part]:
    parts: list[Part] = []
    rows: list[list[Cell]] = [
        [e.measure, e.flatter, e.sharper, e.by, e.text] for e in comparison.explained()
    ]
    if rows:
        columns = [
            MEASURE,
            Column("looks flatter"),
            Column("than"),
            Column("explained by"),
            Column("because"),
        ]
        title = "Differences that are no differences in flatness"
        parts.append(Table("explained-table", title, columns, rows))
    else:
        parts.append(Text(["No difference was found that scale or confidence accounts for."]))
    if unchecked := sentences.unchecked(comparison):
        parts.append(Text(unchecked))
    if comparison.unmatched:
        parts.append(Text([f"Not compared at equal confidence: {comparison.unmatched}"]))
    elif comparison.matched is None:
        parts.append(Text(["Equal confidence was not asked for, so only scale was looked at."]))
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
        "Not flatness, yet flatness numbers follow these. Where networks differ in them, look at "
        "the section above before believing a rank."
    )
    return [
        Text([intro]),
        Table("confounder-table", "Confounders", columns, rows),
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
            "The difference, as a share of what it was, when the logits are scaled until all "
            "networks are equally confident; a dash where the order does not stand, or was not "
            "looked at.",
        ),
    ]
    title = "Not separable here: differences in flatness, and what also differs"
    return [Table("also-differing-table", title, columns, rows)]


def _numbers(comparison: Comparison) -> Table:
    rows: list[list[Cell]] = [
        [measure, name, *numbers.cells(comparison.value(measure, name))]
        for measure in comparison.measures
        for name in comparison.reports
    ]
    columns = [MEASURE, Column("network"), *numbers.COLUMNS]
    filled = numbers.filled(columns, rows)
    return Table("all-numbers", "Every measure of every network", *filled)
