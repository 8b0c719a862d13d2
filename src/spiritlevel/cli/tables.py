"""Reports as tables that fit 80 columns, with long notes below."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from ..results import Measurement, Report, Status
from .console import note, show, tell

SHORT_NOTE = 22  # characters that still fit beside the numbers
COLUMNS = 5  # measures side by side in the table of layers
NARROWEST = 12  # characters for a name, however wide the numbers are
INEXACT = "~"
KINDS = {Status.GGN: "of the GGN", Status.UNCONFIRMED: "not confirmed"}


def print_report(console: Console, report: Report) -> None:
    """Print one row per measure, then the notes and the counted cost."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), show_edge=False)
    table.add_column("measure", no_wrap=True)
    for heading in ("value", "± data"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("note")
    notes: dict[str, int] = {}
    for name, m in report.items():
        error = "" if m.data_stderr is None else f"{m.data_stderr:.2g}"
        text = m.text
        if len(text) > SHORT_NOTE:
            text = f"[{notes.setdefault(text, len(notes) + 1)}]"
        table.add_row(name, f"{m.value:.6g}", error, m.mark, text)
    show(console, table)
    for text, number in notes.items():
        tell(console, text, mark=f"[{number}] ")
    if any(m.data_stderr is not None for m in report.values()):
        note(
            console,
            "± data is the sampling error: how much other data would change the value.",
        )
    if "frozen" in report.settings:
        note(console, f"frozen, so not measured: {report.settings['frozen']}")
    n = int(report.settings["num_samples"])
    note(console, f"counted: {report.cost.passes(n)} per sample over {n} samples")


def print_layers(console: Console, report: Report) -> None:
    """Print one row per layer, one column per measure; repeated columns are left out."""
    columns = distinct_columns(report.layers)
    names = list(columns)
    for start in range(0, len(names), COLUMNS):
        shown = names[start : start + COLUMNS]
        rows = {}
        for layer in dict.fromkeys(layer for name in shown for layer in columns[name]):
            cells = (columns[name].get(layer) for name in shown)
            rows[layer] = ["" if m is None else _cell(m) for m in cells]
        console.print()
        print_by_name(console, "layer", [name.replace(".", ".\n") for name in shown], rows)
    inexact = [m for rows in columns.values() for m in rows.values() if not m.exact]
    if inexact:
        kinds = {KINDS.get(m.status, "estimated") for m in inexact}
        console.print(f"{INEXACT} not exact: {' or '.join(sorted(kinds))}, see the notes above")


def print_by_name(
    console: Console, heading: str, titles: Sequence[str], rows: Mapping[str, Sequence[str]]
) -> None:
    """Print one row per layer or weight: numbers are whole, and names give way to them."""
    between = 3 * len(titles) + 2  # blanks around the columns
    taken = (max(map(_width, column)) for column in zip(titles, *rows.values(), strict=True))
    room = max(console.width - between - sum(taken), NARROWEST)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), show_edge=False)
    table.add_column(heading, overflow="fold")
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)
    for name, cells in rows.items():
        table.add_row(_at_dots(name, room), *cells)
    show(console, table)


def _width(text: str) -> int:
    return max(map(len, text.split("\n")))


def _at_dots(name: str, room: int) -> str:
    """The name in lines that fit, broken behind dots where there are some."""
    lines = [""]
    for part in re.findall(r"[^.]*\.?", name):
        if lines[-1] and len(lines[-1] + part) > room:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)


def distinct_columns(
    layers: Mapping[str, Mapping[str, Measurement]],
) -> dict[str, Mapping[str, Measurement]]:
    """Columns without repetitions: a maximum over layers has the same values as its sum."""
    distinct: dict[str, Mapping[str, Measurement]] = {}
    seen: set[tuple[tuple[str, float], ...]] = set()
    for name, rows in layers.items():
        values = tuple((layer, m.value) for layer, m in rows.items())
        if values not in seen:
            seen.add(values)
            distinct[name] = rows
    return distinct


def _cell(m: Measurement) -> str:
    return f"{m.value:.4g}{'' if m.exact else INEXACT}"
