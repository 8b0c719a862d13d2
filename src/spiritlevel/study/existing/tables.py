"""A table of networks from a .csv file: one row each, the first line names the columns."""

from __future__ import annotations

import csv
import io
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import SpiritlevelError
from ...files.names import as_path
from ...plain_text import cell
from .columns import CHECKPOINT, INITIAL, NetworkTable

ENDINGS = (".csv", ".tsv")
SEPARATORS = ",;\t"


def read_table(path: str | os.PathLike[str]) -> NetworkTable:
    """The rows of a file; paths in it are relative to its folder, or to the working folder."""
    file = as_path(path, what="table of networks")
    try:
        text = file.read_text(encoding="utf-8-sig")  # what spreadsheets write
    except FileNotFoundError as error:
        raise SpiritlevelError(
            f"The table {str(file)!r} must exist. There is no such file in {os.getcwd()!r}."
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise SpiritlevelError(
            f"The table {str(file)!r} cannot be read as text: {error}. Save it as CSV in UTF-8."
        ) from error
    lines = text.splitlines()
    heading = lines[0] if lines else ""
    separator = max(SEPARATORS, key=heading.count)
    try:
        found = list(csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True))
    except csv.Error as error:
        raise SpiritlevelError(
            f"The table {str(file)!r} cannot be read as CSV: {error}. Check its quotation marks."
        ) from error
    names = [name.strip() for name in found[0]] if found else []
    _check_heading(names, file)
    rows, places = [], []
    for number, cells in enumerate(found[1:], start=2):
        if not any(each.strip() for each in cells):
            continue
        if len(cells) != len(names):
            raise SpiritlevelError(
                f"Every line of {str(file)!r} must have {len(names)} values, as its first line. "
                f"Line {number} has {len(cells)}. Put a value with {separator!r} in it in quotes."
            )
        values = {n: each.strip() or None for n, each in zip(names, cells, strict=True)}
        rows.append(values | _placed(values, file.parent))
        places.append(f"line {number}")
    return NetworkTable(rows, places, repr(str(file)))


def table_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as CSV, which `read_table` reads back."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(cell, columns))
    for row in rows:
        writer.writerow(["" if row.get(name) is None else cell(row[name]) for name in columns])
    return text.getvalue()


def _check_heading(names: Sequence[str], file: pathlib.Path) -> None:
    if not names or not all(names):
        raise SpiritlevelError(
            f"The first line of {str(file)!r} must name every column, such as "
            "checkpoint,lr,test_accuracy. "
            + ("One name is empty." if names else "The file is empty.")
        )
    if twice := [name for name in names if names.count(name) > 1]:
        raise SpiritlevelError(
            f"The columns of {str(file)!r} must have different names. {twice[0]!r} is there twice. "
            "Rename one."
        )


def _placed(row: Mapping[str, str | None], folder: pathlib.Path) -> dict[str, str | None]:
    """Paths from the working folder: as they are, unless the file lies beside the table."""
    placed: dict[str, str | None] = {}
    for column in (CHECKPOINT, INITIAL):
        if (value := row.get(column)) is not None:
            beside = folder / os.path.expanduser(value)
            placed[column] = str(beside) if beside.exists() else os.path.expanduser(value)
    return placed
