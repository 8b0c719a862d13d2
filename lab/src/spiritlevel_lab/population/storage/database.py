"""A study's SQLite file: how it is opened and checked, and how its failures read.

SQLite itself puts any value into any column. A store may be edited, damaged or received; statistics
must not meet a text where they count on a number.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import os
import pathlib
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from spiritlevel.ground.errors import SpiritlevelError
from spiritlevel.records.reading import Misread, parse_json, read_as

from ..settings.networks import axes_of
from . import checksums, schema

DATABASE = "runs.sqlite"
DAMAGED = ("malformed", "not a database", "no such table", "no such column", "corrupt")
# A damaged file also makes Python fail to decode what SQLite says about it.
FAILURES = (sqlite3.Error, UnicodeDecodeError)
PATIENCE = 60.0  # seconds to wait for another process that writes
TYPES = {  # of a column, and of the values that it may hold
    "TEXT": ("text",),
    "INTEGER": ("integer",),
    "REAL": ("real", "integer"),
}
JSON = {("runs", "settings"), ("runs", "axes"), ("machines", "description")}
WITH_CHECKSUMS = 3  # the first format that has them
OBJECTS = "SELECT type, name FROM sqlite_master WHERE name NOT LIKE 'sqlite_autoindex_%'"
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


def unusable(folder: pathlib.Path, error: Exception) -> SpiritlevelError:
    """What went wrong with the database, and that finished runs are safe."""
    if any(word in str(error) for word in DAMAGED):
        return damaged(folder, str(error).removeprefix("malformed: "))
    return SpiritlevelError(
        f"The study's store {str(folder / DATABASE)!r} cannot be used: {error}. Runs that were "
        "finished before are kept. Make room on the disk and check that you may write there, then "
        f"`spiritlevel study resume {folder}`."
    )


def damaged(folder: pathlib.Path, problem: str) -> SpiritlevelError:
    """What is wrong inside the database, what is not lost, and the ways out."""
    path = folder / DATABASE
    return SpiritlevelError(
        f"The study's store {str(path)!r} is damaged or was edited: {problem}. Nothing was "
        f"written, and the weights in {str(folder / 'checkpoints')!r} were not touched. Put back "
        f"a copy of {DATABASE}, or save what can still be read with `sqlite3 {path} .recover`, or "
        "run the study again with another --out."
    )


@contextlib.contextmanager
def explained(folder: pathlib.Path) -> Iterator[None]:
    """Failures of the database say what to do."""
    try:
        yield
    except FAILURES as error:
        raise unusable(folder, error) from error


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection, folder: pathlib.Path) -> Iterator[None]:
    """Carry out all statements of the block, or none."""
    with explained(folder):
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


def connect(folder: pathlib.Path) -> sqlite3.Connection:
    """Open the file, or refuse one that this version does not know, untouched."""
    path = folder / DATABASE
    with explained(folder), contextlib.ExitStack() as undo:
        connection = sqlite3.connect(path, timeout=PATIENCE, isolation_level=None)
        undo.callback(connection.close)
        # Before anything is written: a store of a newer version stays as it is.
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version > schema.VERSION:
            raise SpiritlevelError(
                f"The study's store {str(path)!r} was written by a newer spiritlevel (format "
                f"{version}; this one knows up to {schema.VERSION}). It was not touched. Update: "
                "pip install -U spiritlevel"
            )
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        undo.pop_all()
    return connection


def bring_up_to_date(connection: sqlite3.Connection) -> None:
    """Make the tables, or those that an older store lacks; rows stay as they are."""
    version = version_of(connection)
    if version == schema.VERSION:  # nothing is written, not even the number
        return
    steps: list[Sequence[str]] = [
        schema.UPGRADES[each] for each in range(version, schema.VERSION) if version
    ]
    for statement in itertools.chain(*(steps or [schema.TABLES])):
        connection.execute(statement)
    if version:
        checksums.seal_all(connection)
    connection.execute(f"PRAGMA user_version = {schema.VERSION}")


def version_of(connection: sqlite3.Connection) -> int:
    """The format of the store; 0 of one without tables."""
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    tables = {name for [name] in connection.execute("SELECT name FROM sqlite_master")}
    if (version == 0 and tables) or (0 < version < WITH_CHECKSUMS and "checksums" in tables):
        raise sqlite3.DatabaseError("malformed: the number of its format has changed")
    return version


def check_tables(connection: sqlite3.Connection) -> None:
    """Refuse tables that no version writes, and rows of the small ones that have changed."""
    tables = {name: kind for kind, name in connection.execute(OBJECTS)}
    if tables != dict.fromkeys(_columns(), "table"):
        raise sqlite3.DatabaseError(f"malformed: it has other tables: {', '.join(tables)}")
    for table, columns in _columns().items():
        if _columns_of(connection, table) != columns:
            raise sqlite3.DatabaseError(f"malformed: the table {table!r} has other columns")
    checksums.check_rows(connection)


def flush(path: pathlib.Path) -> None:
    """Write a file through the caches of the system: a row never outlives its checkpoint."""
    with contextlib.suppress(OSError):  # some systems cannot flush a folder
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def stored(value: object) -> object:
    """SQLite turns nan into NULL; as a text it survives, and `float` reads it back."""
    return "nan" if isinstance(value, float) and math.isnan(value) else value


def loaded(value: object) -> object:
    """The value that `stored` wrote."""
    return math.nan if value == "nan" else value


def selected(
    connection: sqlite3.Connection, table: str, columns: Sequence[str] = ()
) -> Iterator[dict[str, Any]]:
    """The rows of a table one by one, runs in the order of the grid; each agrees with its checksum.

    With `columns`, only these and the run.
    """
    if table == "runs":
        for row in checksums.checked_runs(connection):
            yield dict(zip(schema.RUNS, map(loaded, row), strict=True))
        return
    names = ("run", *schema.COLUMNS[table])
    wanted = ("run", *(columns or schema.COLUMNS[table]))
    for [run] in connection.execute("SELECT id FROM runs ORDER BY position").fetchall():
        for row in checksums.rows_of_run(connection, table, run):
            values = dict(zip(names, map(loaded, row), strict=True))
            yield {name: values[name] for name in wanted}


def replace_rows(
    connection: sqlite3.Connection, table: str, run: str, rows: Sequence[object]
) -> None:
    """Put these rows of a run in the place of those that it has."""
    columns = schema.COLUMNS[table]
    connection.execute(f"DELETE FROM {table} WHERE run = ?", (run,))
    marks = ", ".join("?" * (len(columns) + 1))
    connection.executemany(
        f"INSERT INTO {table} (run, {', '.join(columns)}) VALUES ({marks})",
        [(run, *(stored(getattr(row, column)) for column in columns)) for row in rows],
    )
    checksums.seal_rows(connection, table, run)


def check_values(connection: sqlite3.Connection, folder: pathlib.Path) -> None:
    """Refuse a store with values of other types; one pass over each table, inside SQLite."""
    try:
        with explained(folder):
            check_tables(connection)
            problem = _wrong_values(connection)
    except Misread as error:
        problem = str(error)
    if problem:
        raise damaged(folder, problem)


def _wrong_values(connection: sqlite3.Connection) -> str:
    """What is wrong with the values of the tables, or ""."""
    for table, columns in _columns().items():
        tests = {name: _test(table, name, *kind) for name, kind in columns.items()}
        row = connection.execute(f"SELECT {', '.join(tests.values())} FROM {table}").fetchone()
        wrong = [name for name, is_wrong in zip(tests, row, strict=True) if is_wrong]
        if wrong:
            return f"the column {wrong[0]!r} of {table!r} holds other values"
    if connection.execute(NESTED).fetchone()[0]:
        return "the axes of a run hold lists or mappings"
    study = connection.execute("SELECT value FROM meta WHERE key = 'study'").fetchone()
    keys = [key for [key] in connection.execute(KEYS)]
    if study is None or keys != ([",".join(sorted(_axes(study[0])))] if keys else []):
        return "the axes of a run are not those of the study"
    return ""


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
        return {table: _columns_of(connection, table) for [table] in tables.fetchall()}


def _columns_of(connection: sqlite3.Connection, table: str) -> dict[str, tuple[str, bool]]:
    described = connection.execute(f"PRAGMA table_info({table})")
    return {name: (kind, not (filled or key)) for _, name, kind, filled, _, key in described}


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
