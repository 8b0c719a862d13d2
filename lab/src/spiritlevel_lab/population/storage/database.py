"""A study's SQLite file: how it is opened, and how its failures read."""

from __future__ import annotations

import contextlib
import math
import os
import pathlib
import sqlite3

from spiritlevel.ground.errors import SpiritlevelError

from . import schema

DATABASE = "runs.sqlite"
DAMAGED = ("malformed", "not a database", "no such table", "no such column", "corrupt")
# A damaged file also makes Python fail to decode what SQLite says about it.
FAILURES = (sqlite3.Error, UnicodeDecodeError)
PATIENCE = 60.0  # seconds to wait for another process that writes


def unusable(folder: pathlib.Path, error: Exception) -> SpiritlevelError:
    """What went wrong with the database, and that finished runs are safe."""
    if any(word in str(error) for word in DAMAGED):
        return damaged(folder, str(error))
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


def connect(folder: pathlib.Path) -> sqlite3.Connection:
    """Open the file, or refuse one that this version does not know, untouched."""
    path = folder / DATABASE
    try:
        connection = sqlite3.connect(path, timeout=PATIENCE, isolation_level=None)
    except sqlite3.Error as error:
        raise unusable(folder, error) from error
    try:
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
    except FAILURES as error:
        connection.close()
        raise unusable(folder, error) from error
    except BaseException:
        connection.close()
        raise
    return connection


def flush(path: pathlib.Path) -> None:
    """Past the caches of the system, so that a row never outlives its checkpoint."""
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
