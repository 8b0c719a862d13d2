"""What a store knows of a study besides its runs: JSON values under names."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable, Iterator
from typing import Any

from .database import connect, unusable
from .store import Store


def read_entry(store: Store, key: str) -> Any:
    """The value, or None if there is none."""
    with _connected(store) as connection:
        return _value(connection, key)


def update_entry(store: Store, key: str, change: Callable[[Any], Any]) -> Any:
    """Replace the value by what `change` makes of it. No other process can write in between."""
    with _connected(store) as connection:
        connection.execute("BEGIN IMMEDIATE")
        value = change(_value(connection, key))
        text = json.dumps(value, sort_keys=True)
        connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, text))
        connection.execute("COMMIT")
    return value


def _value(connection: sqlite3.Connection, key: str) -> Any:
    row = connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return None if row is None else json.loads(row[0])


@contextlib.contextmanager
def _connected(store: Store) -> Iterator[sqlite3.Connection]:
    try:
        with contextlib.closing(connect(store.folder)) as connection:
            yield connection
    except sqlite3.Error as error:
        raise unusable(store.folder, error) from error
