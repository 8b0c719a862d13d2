"""Rows of a store's tables as mappings."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

from . import schema
from .database import loaded


def selected(
    connection: sqlite3.Connection, table: str, columns: Sequence[str] = ()
) -> Iterator[dict[str, Any]]:
    """The rows of a table one by one, runs in the order of the grid.

    With `columns`, only these and the run.
    """
    join = "" if table == "runs" else " JOIN runs ON run = id"
    wanted = f"{table}.*"
    if columns:
        wanted = ", ".join(f"{table}.{column}" for column in ("run", *columns))
    cursor = connection.execute(
        f"SELECT {wanted} FROM {table}{join} ORDER BY {schema.ORDER[table]}"
    )
    names = [column[0] for column in cursor.description]
    for row in cursor:
        yield dict(zip(names, map(loaded, row), strict=True))
