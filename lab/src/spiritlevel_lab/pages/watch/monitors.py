"""The rows that a monitor has written so far: one curve per measure, and what failed.

The file grows while it is read, may end in half a line, and may be cut or replaced by a run that
goes on from a checkpoint: every reading begins anew and takes the whole lines that are there.
"""

from __future__ import annotations

import csv
import errno
import json
import pathlib
from collections.abc import Sequence
from typing import Any

from spiritlevel.training.monitor.monitor import FAILED
from spiritlevel.training.monitor.rows import FORMS

from .reading import Unreadable, cause, number

SUFFIXES = tuple(FORMS)
HEADING = ("step", "epoch", "seconds")  # how a monitor's CSV file begins
ABOUT_THE_ROW = {*HEADING, "status", "text", "warning"}
NOTES = ("stderr", "residual", "status")
MOST_BYTES = 32 * 2**20  # of the end of a file
MOST_POINTS = 2000  # of a curve
MOST_FAILURES = 20  # in words
Row = dict[str, Any]


def monitor_state(path: pathlib.Path) -> Row:
    """What the page shows of a monitor's file, in plain types for JSON."""
    rows, damaged = read_rows(path)
    if not rows:
        raise Unreadable(
            f"None of the {damaged} lines of {path.name!r} is a row of a monitor. Is it the file "
            "that FlatnessMonitor(to=...) writes?"
            if damaged
            else f"The file {path.name!r} has no row yet. The first one appears here."
        )
    failed = [i for i, row in enumerate(rows) if row.get("status") == FAILED]
    places = _thinned(len(rows), failed)
    shown = [rows[i] for i in places]
    return {
        "name": path.name,
        "rows": len(rows),
        "damaged": damaged,
        "steps": [number(row.get("step")) for row in shown],
        "epochs": [number(row.get("epoch")) for row in shown],
        "failed": [row.get("status") == FAILED for row in shown],
        "num_failed": len(failed),
        "failures": [_place(rows[i]) for i in reversed(failed[-MOST_FAILURES:])],
        "measures": [_measure(name, shown) for name in measure_names(rows)],
        "last": _place(rows[-1]) | {"seconds": number(rows[-1].get("seconds"))},
    }


def read_rows(path: pathlib.Path) -> tuple[list[Row], int]:
    """The rows in the complete lines, and how many lines hold no row."""
    try:
        if not path.is_file():  # a pipe would keep us waiting
            raise OSError(errno.EINVAL, "it is not a regular file")
        with path.open("rb") as file:
            heading = file.readline(2**16)
            size = file.seek(0, 2)
            file.seek(max(0, size - MOST_BYTES))
            content = file.read()
    except OSError as error:
        raise Unreadable(
            f"The file {str(path)!r} cannot be read: {cause(error)}. The page goes on when it can."
        ) from error
    lines = content.split(b"\n")[:-1]  # behind the last line's end stands nothing, or half a row
    if size > MOST_BYTES:
        lines = lines[1:]
    texts = [line.decode("utf-8", errors="replace") for line in lines]
    if path.suffix.lower() != ".csv":
        parsed = [_json_row(text) for text in texts if text.strip()]
    else:
        columns = heading.decode("utf-8", errors="replace").strip().split(",")
        if tuple(columns[:3]) != HEADING:
            return [], len(texts)
        first = 1 if size <= MOST_BYTES else 0
        parsed = [_csv_row(text, columns) for text in texts[first:] if text.strip()]
    rows = [row for row in parsed if row is not None]
    return rows, len(parsed) - len(rows)


def _json_row(text: str) -> Row | None:
    try:
        row = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and number(row.get("step")) is not None else None


def _csv_row(text: str, columns: Sequence[str]) -> Row | None:
    try:
        [cells] = csv.reader([text], strict=True)
    except (csv.Error, ValueError):
        return None
    if len(cells) != len(columns) or number(cells[0]) is None:
        return None
    return {name: cell for name, cell in zip(columns, cells, strict=True) if cell}


def measure_names(rows: Sequence[Row]) -> list[str]:
    """The columns that are values: not those about the row or beside another column.

    >>> measure_names([{"step": 1, "a.b": 2.0, "a.b.stderr": 0.1, "status": "ok"}])
    ['a.b']
    """
    columns = dict.fromkeys(key for row in rows for key in row if key not in ABOUT_THE_ROW)
    return [name for name in columns if not _is_note(name, columns)]


def _is_note(name: str, columns: dict[str, None]) -> bool:
    beside, _, last = name.rpartition(".")
    return last in NOTES and beside in columns


def _measure(name: str, rows: Sequence[Row]) -> Row:
    newest = rows[-1]
    error = newest.get(f"{name}.stderr", newest.get(f"{name}.residual"))
    return {
        "name": name,
        "values": [number(row.get(name)) for row in rows],
        "newest": newest.get(name) if number(newest.get(name)) is None else number(newest[name]),
        "error": number(error),
        "status": str(newest.get(f"{name}.status", "")),
    }


def _place(row: Row) -> Row:
    return {
        "step": number(row.get("step")),
        "epoch": number(row.get("epoch")),
        "status": str(row.get("status", "")),
        "text": str(row.get("text", "")),
    }


def _thinned(num_rows: int, failed: Sequence[int]) -> list[int]:
    """Evenly from the newest back, and the newest of those that failed."""
    every = -(-num_rows // MOST_POINTS) or 1
    return sorted({*range(num_rows - 1, -1, -every), *failed[-MOST_POINTS:]})
