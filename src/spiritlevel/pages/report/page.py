"""A whole page as one file of HTML that needs nothing but itself.

Same page, same bytes: no time, no random ids, no order that a hash decides. The page says in its
Content-Security-Policy which scripts it runs, so a script that slipped into a name would not run.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import re
import textwrap
from collections.abc import Mapping, Sequence

from ...ground.errors import SpiritlevelError
from ...ground.version import __version__
from ...records.content import (
    Cards,
    Cell,
    Chart,
    Column,
    Figure,
    IntervalEstimate,
    Notes,
    Page,
    Part,
    Section,
    Table,
    Text,
    fitted_line,
    number,
)
from . import cards, markup, scripts
from .markup import Links, escape

LONG_FACT = 40  # characters that take a line of their own
LINE = 44  # characters of a title along an upright axis
LOGO = (
    '<svg viewBox="0 0 48 18" aria-hidden="true" focusable="false"><rect x="1" y="1" width="46" '
    'height="16" rx="8" fill="none" stroke="currentColor" stroke-width="2"/><path d="M17 2v14M31 '
    '2v14" stroke="currentColor" stroke-width="1.5"/><ellipse cx="24" cy="9" rx="5.5" ry="4.5" '
    'fill="currentColor"/></svg>'
)
NO_PICTURES = "<noscript><p>Pictures need JavaScript; their tables do not.</p></noscript>"


def render(page: Page) -> str:
    """The page as HTML: styles, scripts and data inside, nothing to fetch."""
    page = _for_browsers(page)
    _check_ids(page)
    charts = [part for s in page.sections for part in s.parts if isinstance(part, Chart)]
    links = cards.anchors(
        name for s in page.sections for p in s.parts if isinstance(p, Cards) for name in p.names
    )
    early = scripts.asset("early.js")
    late = [scripts.asset("page.js"), scripts.asset("tables.js")]
    if charts:
        late += [*scripts.kinds(chart.kind for chart in charts), scripts.plotly()]
    sections = "\n".join(_section(section, links) for section in page.sections)
    contents = "\n".join(f'<li><a href="#{s.id}">{escape(s.title)}</a></li>' for s in page.sections)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{scripts.policy([early, *late])}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="spiritlevel {__version__}">
<title>{escape(page.title)}</title>
<style>{scripts.asset("page.css")}</style>
{scripts.script(early)}
</head>
<body>
<a class="skip" href="#content">Skip to the content</a>
<div class="bar"><span class="brand">{LOGO} spiritlevel</span>\
<button type="button" id="theme">Dark colours</button></div>
<div class="frame">
<header class="lead">
<h1>{escape(page.title)}</h1>
<p>{markup.linked(page.lead, links)}</p>
{_highlights(page, links)}{_facts(page.facts, links)}{_settings(page, links)}
</header>
<div class="columns">
<nav class="contents" aria-label="Contents">
<ol>
{contents}
</ol>
</nav>
<main id="content" tabindex="-1">
{NO_PICTURES if charts else ""}
{sections}
<footer><p>Made by spiritlevel {__version__}. This file is complete: it loads nothing from the \
network.</p></footer>
</main>
</div>
</div>
<div id="tip" role="tooltip" hidden></div>
{"".join(map(scripts.script, late))}
</body>
</html>
"""


def _for_browsers(page: Page) -> Page:
    """The page in parts that the scripts know."""

    def for_browser(part: Part, place: str) -> Part:
        if isinstance(part, Figure):
            return chart_of(part)
        if not isinstance(part, Table):
            return part
        return dataclasses.replace(intervals_apart(part), id=part.id or place)

    sections = [
        dataclasses.replace(
            section,
            parts=[for_browser(p, f"{section.id}-{i}") for i, p in enumerate(section.parts)],
        )
        for section in page.sections
    ]
    return dataclasses.replace(page, sections=sections)


def _facts(facts: Mapping[str, str], links: Links) -> str:
    if not facts:
        return ""
    rows = "\n".join(
        f'<div class="{"long" if len(text) > LONG_FACT else "short"}">'
        f"<dt>{escape(name)}</dt><dd>{markup.linked(text, links)}</dd></div>"
        for name, text in facts.items()
    )
    return f'<dl class="facts">\n{rows}\n</dl>'


def _highlights(page: Page, links: Links) -> str:
    if not page.highlights:
        return ""
    return f"{markup.paragraphs(Text(page.highlights, bullets=True), links)}\n"


def _settings(page: Page, links: Links) -> str:
    if not page.settings:
        return ""
    inside = _facts(page.settings, links)
    return f'\n<details class="settings"><summary>Settings</summary>\n{inside}\n</details>'


def _section(section: Section, links: Links) -> str:
    inside = "\n".join(_part(part, links) for part in section.parts)
    heading = f'<h2 id="{section.id}-title">{escape(section.title)}</h2>'
    if section.folded:
        inside = f"<details><summary>{heading}</summary>\n{inside}\n</details>"
    else:
        inside = f"{heading}\n{inside}"
    return f'<section id="{section.id}" aria-labelledby="{section.id}-title">\n{inside}\n</section>'


def _part(part: Part, links: Links) -> str:
    if isinstance(part, Table):
        return markup.table(part, links)
    if isinstance(part, Chart):
        return _chart(part, links)
    if isinstance(part, Text):
        return markup.paragraphs(part, links)
    if isinstance(part, Notes):
        return markup.paragraphs(Text(part.sentences), links)
    assert isinstance(part, Cards)  # figures are charts by now
    return cards.render(part.names, links)


def _chart(chart: Chart, links: Links) -> str:
    caption = f'<p class="caption">{markup.linked(chart.caption, links)}</p>'
    label = escape(f"Picture: {chart.title}. The same numbers are in the table below it.")
    count = len(chart.table.rows)
    rows = "1 row" if count == 1 else f"{count} rows"
    return f"""<figure id="{chart.id}">
<figcaption><h3>{escape(chart.title)}</h3>{caption if chart.caption else ""}</figcaption>
<div class="plot" data-kind="{chart.kind}" role="group" aria-label="{label}"></div>
<div class="tools"><button type="button" data-save="png">Download PNG</button>\
<button type="button" data-save="svg">Download SVG</button></div>
<details><summary>The numbers ({rows})</summary>
{markup.table(chart.table, links, titled=False)}
</details>
{scripts.data(chart.id, chart.data)}
</figure>"""


def _check_ids(page: Page) -> None:
    """Ids become anchors and parts of others: plain, and each once."""
    ids = [section.id for section in page.sections]
    for section in page.sections:
        for part in section.parts:
            if isinstance(part, Table | Chart):
                ids.append(part.id)
            if isinstance(part, Chart):
                ids.append(part.table.id)
    bad = [name for name in ids if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_.-]*", name)]
    bad += [name for name, count in collections.Counter(ids).items() if count > 1]
    if bad:
        raise SpiritlevelError(
            "The ids of a page's sections, figures and tables must start with a letter, hold only "
            f"letters, digits, '.', '_' and '-', and occur once. Got {sorted(set(bad))}. Number "
            "them instead of using names from files."
        )


def chart_of(figure: Figure) -> Chart:
    """Lines or marks with a legend, log axes to switch on, and a table of the points."""
    data = {
        "x_title": textwrap.wrap(figure.x_label, LINE),
        "y_title": textwrap.wrap(figure.y_label, LINE),
        "names": figure.names,
        "joined": not figure.points,
        "log_x": figure.log_x,
        "log_y": figure.log_y,
        "series": [
            {
                **{"name": each.name, "x": each.x, "y": each.y, "low": each.low, "high": each.high},
                "line": fitted_line(each.x, each.y, log_x=figure.log_x) if figure.fitted else None,
            }
            for each in figure.series
        ],
    }
    rows: list[list[Cell]] = [
        [line.name, x, *(_at(values, i) for values in (line.y, line.low, line.high))]
        for line in figure.series
        for i, x in enumerate(line.x)
    ]
    titles = ("line", figure.x_label, figure.y_label, "from", "to")
    table = Table(titles, rows, id=f"{figure.id}-values", title="The points").filled()
    notes = [figure.caption] if figure.caption else []
    if any(line.low is not None for line in figure.series):
        notes.append("Whiskers are 95 % intervals over runs.")
    if figure.fitted:
        notes.append("Lines are by least squares, one for the points of each name.")
    if len(figure.series) > 1:
        notes.append("A click on a name in the legend hides its points.")
    return Chart(figure.id, figure.title, "series", data, table, " ".join(notes))


def intervals_apart(table: Table) -> Table:
    """The same table with every estimate in two columns, so that it can be sorted by its value."""
    given = [[row[place] for row in table.rows] for place in range(len(table.columns))]
    has_estimates = [any(isinstance(cell, IntervalEstimate) for cell in cells) for cells in given]
    if not any(has_estimates):
        return table
    columns: list[Column] = []
    split: list[Sequence[Cell]] = []
    for heading, cells, is_estimate in zip(table.headings, given, has_estimates, strict=True):
        columns.append(heading)
        split.append([_value_of(cell) for cell in cells])
        if is_estimate:
            alone = sum(has_estimates) == 1
            columns.append(Column("95 % interval" if alone else f"95 % of {heading.title}"))
            split.append([_interval(cell) for cell in cells])
    return dataclasses.replace(table, columns=columns, rows=list(zip(*split, strict=True)))


def _at(values: Sequence[float] | None, place: int) -> Cell:
    return None if values is None else _value_of(values[place])


def _value_of(cell: Cell) -> Cell:
    """The number of an estimate; None where there is no number."""
    value = cell.value if isinstance(cell, IntervalEstimate) else cell
    return None if isinstance(value, float) and math.isnan(value) else value


def _interval(cell: Cell) -> str | None:
    if not isinstance(cell, IntervalEstimate) or math.isnan(cell.low):
        return None
    return f"[{number(cell.low)}, {number(cell.high)}]"
