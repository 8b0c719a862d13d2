"""A store as files that other programs read: CSV, or Parquet where pyarrow is there."""

from __future__ import annotations

import csv
import io
import json
import os
import pathlib
from collections.abc import Iterable, Iterator
from typing import Any

from ..errors import SpiritlevelError, brief, require
from ..files import write_atomically
from ..plain_text import cell
from .population import Population
from .storage import schema
from .storage.store import Store

FORMATS = ("csv", "parquet")


def export(store: Store, folder: str | os.PathLike[str], *, kind: str = "csv") -> list[str]:
    """Write runs, machines, epochs, measurements and those of epochs to `folder`; the paths."""
    if kind not in FORMATS:
        raise SpiritlevelError(
            f"The 'kind' must be one of {', '.join(FORMATS)}. Got {brief(kind)}."
        )
    write = _csv if kind == "csv" else _parquet
    written = []
    for name in ("runs", "machines", *schema.COLUMNS):  # one at a time: each may be large
        path = pathlib.Path(folder) / f"{name}.{kind}"
        columns, rows = _table(store, name)
        write_atomically(path, write(columns, _plain(rows)))
        written.append(str(path))
    return written


def _table(store: Store, name: str) -> tuple[list[str], Iterable[dict[str, Any]]]:
    """The columns of a table, in order of appearance, and its rows; a run that failed lacks some.

    The rows of runs are those of the population, whose axes stand one by one, and what else the
    store knows of a run. A machine has one column for each thing that is known about it.
    """
    if name in schema.COLUMNS:
        return ["run", *schema.COLUMNS[name]], store.each_row(name)
    if name == "machines":
        rows = [{"machine": number} | facts for number, facts in sorted(store.machines().items())]
    else:
        wide = Population.of(store).rows
        details = {run["id"]: run for run in store.rows("runs")}  # later: not fewer
        rows = [
            row | {k: v for k, v in details[row["run"]].items() if k not in {*row, "id", "axes"}}
            for row in wide
        ]
    first = "run" if name == "runs" else "machine"  # also where there are no rows
    return list(dict.fromkeys([first, *(key for row in rows for key in row)])), rows


def _plain(rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Lists and mappings as JSON text: a cell holds a number, a text, or nothing."""
    for row in rows:
        yield {
            key: json.dumps(value) if isinstance(value, list | tuple | dict) else value
            for key, value in row.items()
        }


def _csv(columns: list[str], rows: Iterable[dict[str, Any]]) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(cell, columns))
    writer.writerows([cell(row.get(name, "")) for name in columns] for row in rows)
    return text.getvalue().encode("utf-8", "backslashreplace")


def _parquet(columns: list[str], rows: Iterable[dict[str, Any]]) -> bytes:
    arrow = require("pyarrow", what="Parquet export", extra="study")
    parquet = require("pyarrow.parquet", what="Parquet export", extra="study")
    buffer = io.BytesIO()
    values: dict[str, list[Any]] = {name: [] for name in columns}
    for row in rows:
        for name, column in values.items():
            column.append(row.get(name))
    # Not through pandas, which has one word for what is missing and for what is not a number.
    table = {name: arrow.array(_typed(values.pop(name))) for name in columns}
    parquet.write_table(arrow.table(table), buffer)
    return buffer.getvalue()


def _typed(values: list[Any]) -> list[Any]:
    """A Parquet column has one type: where a study mixes them, texts as CSV has them."""
    types = {type(value) for value in values if value is not None}
    if len(types) < 2:
        return values
    one = float if types == {int, float} else str
    return [None if value is None else one(value) for value in values]
