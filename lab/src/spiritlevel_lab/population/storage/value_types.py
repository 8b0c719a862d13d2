"""Whether the values in a store have the types of their columns.

SQLite itself puts any value into any column. A store may be edited, damaged or received; statistics
must not meet a text where they count on a number.
"""

from __future__ import annotations

import contextlib
import functools
import pathlib
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from spiritlevel.records.reading import Misread, parse_json, read_as

from ..settings.given_networks import axes_of
from . import schema
from .database import FAILURES, damaged, unusable

TYPES = {  # of a column, and of the values that it may hold
    "TEXT": ("text",),
    "INTEGER": ("integer",),
    "REAL": ("real", "integer"),
}
JSON = {("runs", "settings"), ("runs", "axes"), ("machines", "description")}
KEYS = """
    SELECT DISTINCT (
        SELECT coalesce(group_concat(key, ','), '')
        FROM (SELECT key FROM json_each(runs.axes) ORDER BY key)
    ) FROM runs
"""
NESTED = """
    SELECT count(*) FROM runs, json_each(runs.axes)
    WHERE json_each.type IN ('array', 'object', 'null')
"""


def check_values(connection: sqlite3.Connection, folder: pathlib.Path) -> None:
    """Refuse a store with values of other types; one pass over each table, inside SQLite."""
    try:
        for table, columns in _columns().items():
            tests = {name: _test(table, name, *kind) for name, kind in columns.items()}
            row = connection.execute(f"SELECT {', '.join(tests.values())} FROM {table}").fetchone()
            wrong = [name for name, is_wrong in zip(tests, row, strict=True) if is_wrong]
            if wrong:
                raise damaged(folder, f"the column {wrong[0]!r} of {table!r} holds other values")
        if connection.execute(NESTED).fetchone()[0]:
            raise damaged(folder, "the axes of a run hold lists or mappings")
        study = connection.execute("SELECT value FROM meta WHERE key = 'study'").fetchone()
        keys = [key for [key] in connection.execute(KEYS)]
        if study is None or keys != ([",".join(sorted(_axes(study[0])))] if keys else []):
            raise damaged(folder, "the axes of a run are not those of the study")
    except Misread as error:
        raise damaged(folder, str(error)) from error
    except FAILURES as error:
        raise unusable(folder, error) from error


def _axes(study: str) -> list[str]:
    """What varies in a study, from its text alone: to make its runs would take long."""
    content = read_as(Mapping[str, Any], parse_json(study), "the definition of the study")
    kind = Mapping[str, Any] | None
    varied = [read_as(kind, content.get(key), key) or {} for key in ("variants", "grid")]
    networks = read_as(Sequence[Mapping[str, Any]], content.get("networks", []), "networks")
    for network in networks:
        read_as(kind, network.get("settings"), "the settings of a network")
    return [*(["variant"] if varied[0] else []), *varied[1], *axes_of(networks)]


@functools.cache
def _columns() -> dict[str, dict[str, tuple[str, bool]]]:
    """Type of every column, and whether it may be empty, as the statements declare them."""
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        for statement in schema.TABLES:
            connection.execute(statement)
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        return {
            table: {
                name: (kind, not (filled or key))
                for _, name, kind, filled, _, key in connection.execute(
                    f"PRAGMA table_info({table})"
                )
            }
            for [table] in tables.fetchall()
        }


def _test(table: str, name: str, kind: str, may_be_empty: bool) -> str:
    """An expression that is 1 if any row holds a value of another type."""
    types = TYPES[kind] + (("null",) if may_be_empty else ())
    listed = ", ".join(f"'{each}'" for each in types)
    test = f"typeof({name}) NOT IN ({listed})"
    if kind == "REAL":
        test = f"({test} AND {name} IS NOT 'nan')"  # which SQLite has no number for
    if (table, name) in JSON:
        test = f"({test} OR NOT json_valid({name}) OR json_type({name}) != 'object')"
    return f"max({test})"
