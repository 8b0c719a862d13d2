"""Checksums of all that a store holds: a byte that has changed is an error, and no other value.

Of `meta`, `machines` and `runs` every row has one, kept by triggers of the connection that writes:
a row is compared before it is changed. Of the other tables all rows of a run have one together, so
that a missing row is noticed too. A store of a format before 3 gets them when it is opened.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

from . import schema

ROWS = {  # tables whose rows have a checksum each; the first column is the key
    "meta": ("key", "value"),
    "machines": ("id", "description"),
    "runs": schema.RUNS,
}
CHECKSUM = "SELECT sha256 FROM checksums WHERE part = '{table}' AND key = {key}"
SEALED = """
    CREATE TEMP TRIGGER sealed_{table}_{event} AFTER {event} ON main.{table} BEGIN
        DELETE FROM checksums WHERE part = '{table}' AND key = NEW.{key};
        INSERT INTO checksums VALUES ('{table}', NEW.{key}, row_checksum('{table}', {new}));
    END
"""
CHECKED = """
    CREATE TEMP TRIGGER checked_{table} BEFORE UPDATE ON main.{table}
    WHEN ({checksum}) IS NOT row_checksum('{table}', {old}) BEGIN
        SELECT RAISE(ABORT, 'malformed: a row of {table} has changed since it was written');
    END
"""
GONE = """
    CREATE TEMP TRIGGER gone_{table} AFTER DELETE ON main.{table} BEGIN
        DELETE FROM checksums WHERE part = '{table}' AND key = OLD.{key};
    END
"""


def keep(connection: sqlite3.Connection) -> None:
    """Let every write of this connection to `meta`, `machines` and `runs` keep the checksums."""
    connection.create_function("row_checksum", -1, _of_row, deterministic=True)
    for table, columns in ROWS.items():
        key = columns[0]
        words = {
            "table": table,
            "key": key,
            "new": ", ".join(f"NEW.{column}" for column in columns),
            "old": ", ".join(f"OLD.{column}" for column in columns),
            "checksum": CHECKSUM.format(table=table, key=f"OLD.{key}"),
        }
        for event in ("INSERT", "UPDATE"):
            connection.execute(SEALED.format(event=event, **words))
        connection.execute(CHECKED.format(**words))
        connection.execute(GONE.format(**words))


def has_checksums(connection: sqlite3.Connection) -> bool:
    """Whether a store carries them: those of an earlier format that nobody has opened do not."""
    return bool(
        connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'checksums'").fetchone()
    )


def check_rows(connection: sqlite3.Connection) -> None:
    """Refuse a store in which a row of `meta`, `machines` or `runs` has changed or is missing."""
    for table, columns in ROWS.items():
        query = "SELECT key, sha256 FROM checksums WHERE part = ?"
        left = dict(connection.execute(query, (table,)).fetchall())
        for row in connection.execute(f"SELECT {', '.join(columns)} FROM {table}"):
            if left.pop(str(row[0]), None) != _checksum(table, str(row[0]), [row]):
                raise _changed(f"the row {row[0]!r} of {table!r}")
        if left:
            raise _changed(f"a row of {table!r} that is missing")


def checked_runs(connection: sqlite3.Connection) -> Iterator[tuple[Any, ...]]:
    """The rows of `runs` in the order of the grid, with the columns `schema.RUNS`."""
    columns = ", ".join(schema.RUNS)
    query = f"SELECT ({CHECKSUM.format(table='runs', key='id')}), {columns} FROM runs"
    for checksum, *row in connection.execute(f"{query} ORDER BY position"):
        if checksum != _checksum("runs", row[0], [row]):
            raise _changed(f"the row of run {row[0]!r}")
        yield tuple(row)


def rows_of_run(connection: sqlite3.Connection, table: str, run: str) -> list[tuple[Any, ...]]:
    """The rows of a run in another table, in order: "run" and `schema.COLUMNS` of the table."""
    columns = ", ".join(f"{table}.{column}" for column in ("run", *schema.COLUMNS[table]))
    # In one statement: of one moment.
    found = connection.execute(
        f"SELECT sha256, {columns} FROM (SELECT 1) "
        f"LEFT JOIN checksums ON part = '{table}' AND key = ? LEFT JOIN {table} ON run = ? "
        f"ORDER BY {', '.join(schema.KEYS[table])}",
        (run, run),
    ).fetchall()
    rows = [tuple(row[1:]) for row in found if row[1] is not None]
    if found[0][0] != (_checksum(table, run, rows) if rows else None):
        raise _changed(f"the rows of run {run!r} in {table!r}")
    return rows


def seal_rows(connection: sqlite3.Connection, table: str, run: str) -> None:
    """Put down the checksum of the rows that a run has now, as they are read."""
    columns = ", ".join(("run", *schema.COLUMNS[table]))
    rows = connection.execute(
        f"SELECT {columns} FROM {table} WHERE run = ? ORDER BY {', '.join(schema.KEYS[table])}",
        (run,),
    ).fetchall()
    connection.execute("DELETE FROM checksums WHERE part = ? AND key = ?", (table, run))
    if rows:
        checksum = _checksum(table, run, rows)
        connection.execute("INSERT INTO checksums VALUES (?, ?, ?)", (table, run, checksum))


def seal_all(connection: sqlite3.Connection) -> None:
    """Put down all checksums, of what an earlier version wrote without."""
    connection.execute("DELETE FROM checksums")
    for table, columns in ROWS.items():
        rows = connection.execute(f"SELECT {', '.join(columns)} FROM {table}").fetchall()
        connection.executemany(
            "INSERT INTO checksums VALUES (?, ?, ?)",
            [(table, str(row[0]), _checksum(table, str(row[0]), [row])) for row in rows],
        )
    for table in schema.COLUMNS:
        for [run] in connection.execute(f"SELECT DISTINCT run FROM {table}").fetchall():
            seal_rows(connection, table, run)


def _of_row(table: str, *row: Any) -> str:
    return _checksum(table, str(row[0]), [row])


def _checksum(part: str, key: str, rows: Sequence[Sequence[Any]]) -> str:
    """Of values and their types; what JSON has no word for is no value of a store."""
    try:
        text = json.dumps([part, key, rows])
    except TypeError:  # bytes, where a damaged type says so
        return ""
    return hashlib.sha256(text.encode()).hexdigest()


def _changed(what: str) -> sqlite3.DatabaseError:
    return sqlite3.DatabaseError(
        f"malformed: the checksum of {what} does not match, so it is not what was written"
    )
