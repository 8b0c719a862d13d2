"""A study's SQLite file, read without writing a byte and without making a file.

SQLite's own `mode=ro` is not enough for a store with a write-ahead log: where the log is not there,
it makes one. So the log decides how the store is opened.
"""

from __future__ import annotations

import contextlib
import pathlib
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from typing import TypeVar

from spiritlevel.ground.errors import SpiritlevelError

from ...population.storage import schema
from ...population.storage.checksums import has_checksums
from ...population.storage.copies import copy_store, files_of, stamp
from ...population.storage.database import DATABASE, FAILURES, check_tables, version_of
from ...population.storage.refusals import refuse_loss, refuse_without_log
from .reading import Unreadable, cause

TRIES = 5
PATIENCE = 1.0  # seconds
READ_VERSION = 18  # the byte of the header that says 2 where a write-ahead log is used
Found = TypeVar("Found")


def read(folder: pathlib.Path, query: Callable[[sqlite3.Connection], Found]) -> Found:
    """What `query` finds in one moment of the store."""
    store, log, index = files_of(folder)
    try:
        refuse_loss(folder)
    except SpiritlevelError as error:
        raise Unreadable(str(error)) from error
    for _ in range(TRIES):
        before = stamp((store, log))
        options = _options(folder)
        if log.exists() and log.stat().st_size and not index.exists():
            return _read_copy(folder, query)
        with _connection(folder, store, options) as connection:
            result = query(connection)
        # Read without locks, because nobody was writing: that must have stayed so.
        if "immutable" not in options or before == stamp((store, log)):
            return result
    raise Unreadable("The study's store is changing right now. The page will read it again.")


def _read_copy(folder: pathlib.Path, query: Callable[[sqlite3.Connection], Found]) -> Found:
    """Where no process has the log open, as in a copied folder, SQLite would write its index."""
    with tempfile.TemporaryDirectory(prefix="spiritlevel-") as scratch:
        try:
            copy_store(folder, pathlib.Path(scratch))
        except SpiritlevelError as error:
            raise Unreadable(str(error)) from error
        with _connection(folder, pathlib.Path(scratch) / DATABASE, "mode=rw") as connection:
            return query(connection)


def _options(folder: pathlib.Path) -> str:
    store, log, _ = files_of(folder)
    try:
        with store.open("rb") as file:
            header = file.read(READ_VERSION + 1)
    except OSError as error:
        raise Unreadable(
            f"The study's store {str(store)!r} cannot be opened: {cause(error)}. The page goes on "
            "when it can."
        ) from error
    if len(header) > READ_VERSION and header[READ_VERSION] != 2:
        return "mode=ro"
    if not log.exists() or log.stat().st_size == 0:
        return "mode=ro&immutable=1"
    return "mode=ro&readonly_shm=1"


@contextlib.contextmanager
def _connection(
    folder: pathlib.Path, store: pathlib.Path, options: str
) -> Iterator[sqlite3.Connection]:
    uri = f"{store.absolute().as_uri()}?{options}"
    try:
        opened = sqlite3.connect(uri, uri=True, timeout=PATIENCE, isolation_level=None)
        with contextlib.closing(opened) as connection:
            connection.execute("BEGIN")  # everything below is of one moment
            _check(connection, folder)
            yield connection
    except FAILURES as error:
        raise Unreadable(
            f"The study's store {str(store)!r} cannot be read: {error}. The page tries again; if "
            "that does not help, the file is damaged."
        ) from error


def _check(connection: sqlite3.Connection, folder: pathlib.Path) -> None:
    version = version_of(connection)
    try:
        refuse_without_log(connection, folder, version)
    except SpiritlevelError as error:
        raise Unreadable(str(error)) from error
    if version == 0:
        raise Unreadable(
            "The study has no runs yet. They appear here as soon as `spiritlevel study run` has "
            "made them."
        )
    if version > schema.VERSION:
        raise Unreadable(
            f"The study was written by a newer spiritlevel (format {version}; this one knows up "
            f"to {schema.VERSION}). Update: pip install -U spiritlevel"
        )
    if has_checksums(connection):
        check_tables(connection)
