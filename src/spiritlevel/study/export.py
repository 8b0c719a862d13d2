"""A store as files that other programs read: CSV, or Parquet where pandas and pyarrow are there."""

from __future__ import annotations

import csv
import io
import os
import pathlib
from typing import Any

from .._core import SpiritlevelError, require
from ..checkpoints import write_atomically
from .store import Store
from .table import wide_rows

FORMATS = ("csv", "parquet")


def export(store: Store, folder: str | os.PathLike[str], *, kind: str = "csv") -> list[str]:
    """Write runs, epochs, measurements and those of epochs to `folder`; the paths."""
    if kind not in FORMATS:
        raise SpiritlevelError(f"The 'kind' must be one of {', '.join(FORMATS)}. Got {kind!r}.")
    write = _csv if kind == "csv" else _parquet
    tables = {
        "runs": wide_rows(store),
        "epochs": store.rows("epochs"),
        "measurements": store.rows("measurements"),
        "epoch_measurements": store.rows("epoch_measurements"),
    }
    written = []
    for name, rows in tables.items():
        path = pathlib.Path(folder) / f"{name}.{kind}"
        write_atomically(path, write(rows))
        written.append(str(path))
    return written


def _columns(rows: list[dict[str, Any]]) -> list[str]:
    """Of all rows, in order of appearance: a run that failed lacks some."""
    return list(dict.fromkeys(key for row in rows for key in row))


def _csv(rows: list[dict[str, Any]]) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, _columns(rows), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def _parquet(rows: list[dict[str, Any]]) -> bytes:
    pandas = require("pandas", what="Parquet export", extra="study")
    require("pyarrow", what="Parquet export", extra="study")
    buffer = io.BytesIO()
    frame = pandas.DataFrame(rows, columns=_columns(rows))
    frame.to_parquet(buffer, engine="pyarrow", index=False)
    return buffer.getvalue()
