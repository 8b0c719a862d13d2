"""The page of a measurement: every number with what it is worth, layer by layer."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence

from ...records.content import Cards, Chart, Column, Page, Part, Section, Table, Text
from ...results import Measurement, Report
from . import numbers

FIRST = ("relative.kappa", "curvature.trace")  # what the first sentence is about, where it is there
SHARPEST = 3  # layers that are named
CAVEAT = (
    "A number by itself says little. Every curvature falls as a network becomes more certain, and "
    "some numbers change with the scale of the weights: compare networks at equal confidence "
    "(spiritlevel compare), and let an audit say which numbers to trust (spiritlevel audit)."
)
MEASURE = Column("measure", "Follow the name to its card.")


def page_of(report: Report, *, title: str = "") -> Page:
    """The page of one network."""
    count = int(report.settings["num_samples"])
    cost = {"counted cost": f"{report.cost.passes(count)} over the data"}
    return Page(
        title=title or f"Flatness of a network on {count:,} samples",
        lead=_lead(report),
        highlights=_highlights(report),
        facts=numbers.subject_of(report.settings) | {"samples (n)": f"{count:,}"} | cost,
        settings=numbers.settings_of(report.settings),
        sections=[
            *layers("layers", report.layers),
            Section("numbers", "The numbers", [whole(report), _reading()]),
            numbers.caveats(report),
            Section("cost", "Cost", [_costs(report, count)]),
            Section("cards", "The measures", [Cards(list(report))]),
        ],
    )


def _highlights(report: Report) -> list[str]:
    """Sharpest layers, certainty, loss and accuracy, and one caveat."""
    lines = [text for name in FIRST[:1] if (text := _sharpest(report, name))]
    classes = int(report.settings.get("num_outputs", 0))
    if "softmax.gini" in report and classes > 1:
        lines.append(numbers.certainty(report["softmax.gini"].value, classes))
    if well := numbers.performance(report.settings):
        lines.append(f"On these samples: {', '.join(f'{k} {v}' for k, v in well.items())}.")
    return [*lines, numbers.warning(report.settings) or CAVEAT]


def _sharpest(report: Report, name: str) -> str:
    """The layers with the largest shares of a sum over layers; "" where there are none."""
    rows = {layer: m.value for layer, m in report.layers.get(name, {}).items()}
    total = sum(rows.values())
    if len(rows) < 2 or not total > 0 or min(rows.values()) < 0:
        return ""
    top = sorted(rows, key=lambda layer: -rows[layer])[:SHARPEST]
    shares = numbers.listing(f"{layer} ({rows[layer] / total:.0%})" for layer in top)
    return f"Sharpest layers, with their shares of {name}: {shares}, of {len(rows)} layers."


def layers(identifier: str, tables: Mapping[str, Mapping[str, Measurement]]) -> list[Section]:
    """The profile of the layers; nothing where no measure has layers."""
    order = [*(name for name in FIRST if name in tables), *tables]  # the plot opens on the first
    shown = {name: tables[name] for name in dict.fromkeys(order) if tables[name]}
    if not shown:
        return []
    series = [
        {
            "name": name,
            "names": list(rows),
            "values": [m.value for m in rows.values()],
            "low": [(numbers.interval(m) or (None, None))[0] for m in rows.values()],
            "high": [(numbers.interval(m) or (None, None))[1] for m in rows.values()],
            "exact": [m.exact for m in rows.values()],
        }
        for name, rows in shown.items()
    ]
    rows = [[layer, name, *numbers.cells(m)] for name, r in shown.items() for layer, m in r.items()]
    columns = [Column("layer"), MEASURE, *numbers.SHORT_COLUMNS]
    title = "Every measure of every layer"
    table = Table(columns, rows, id=f"{identifier}-table", title=title).filled()
    chart = Chart(
        f"{identifier}-profile",
        "Layer by layer",
        "bars",
        {"label": "Measure", "series": series},
        table,
        "From the input to the output. Whiskers are the intervals that the method gives; an exact "
        "value has none. Where a measure is a maximum, these are the layers it was taken over.",
    )
    return [Section(identifier, "The layers", [chart])]


def _lead(report: Report) -> str:
    if not report:
        return "Nothing was measured."
    kinds = collections.Counter(numbers.status_text(m) for m in report.values())
    parts = ", ".join(f"{number} {kind}" for kind, number in kinds.most_common())
    total = "1 number" if len(report) == 1 else f"{len(report)} numbers"
    summary = f"All {total} are exact" if kinds["exact"] == len(report) > 1 else f"{total}: {parts}"
    values = [
        f"{name} is {numbers.with_interval(report[name])}" for name in FIRST if name in report
    ]
    if not values:
        values = [f"{name} is {numbers.with_interval(m)}" for name, m in list(report.items())[:1]]
    return f"{numbers.listing(values)}. {summary}."


def whole(report: Report, columns: Sequence[Column] = numbers.COLUMNS) -> Table:
    """The table of the whole network, one row per measure."""
    rows = [[name, *numbers.cells(m)] for name, m in report.items()]
    return Table([MEASURE, *columns], rows, id="measures", title="Whole network").filled()


def _reading() -> Text:
    return Text(
        [
            "For these samples, an exact number is the quantity itself up to round-off. Any other "
            "number has an interval, or a note that says what it is and what to do next.",
            "± data is the sampling error: how much other data would change the number. More "
            "samples lower it, more probes do not.",
            "For most measures a smaller number means a flatter minimum; the card says so, or "
            "that it is not a flatness measure. Whether two networks can be compared by it is "
            "what an audit finds out (spiritlevel audit).",
        ],
        bullets=True,
    )


def _costs(report: Report, count: int) -> Part:
    rows = [
        [
            name,
            m.cost.forwards / count,
            m.cost.backwards / count,
            m.cost.products / count,
            numbers.other_settings(m, report.settings) or None,
        ]
        for name, m in report.items()
    ]
    columns = [
        MEASURE,
        Column("forwards", "Passes over the data."),
        Column("backwards", "Passes over the data."),
        Column("Hessian products", "Passes over the data."),
        Column("other settings"),
    ]
    caption = (
        "In passes over the data, counted as if each measure were computed alone; work that "
        "several share was done once. The total is in the box at the top."
    )
    title = "Counted cost and settings"
    return Table(columns, rows, id="costs", title=title, caption=caption).filled()
