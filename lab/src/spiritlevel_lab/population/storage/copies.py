"""Stores that may be read but not written: of another user, in an archive, on a read-only disk.

SQLite writes even where it only reads: a store with a write-ahead log needs a file for the log's
index. So a copy is made in a temporary folder, of one moment of the store, and that is read.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import sqlite3
from collections.abc import Sequence

from spiritlevel.ground.errors import SpiritlevelError
from spiritlevel.ground.files import is_plain

from .database import DATABASE

TRIES = 5
PATIENCE = 10.0  # seconds to wait for a process that writes
Stamp = tuple[tuple[str, int, int, int] | None, ...]


def files_of(folder: pathlib.Path) -> list[pathlib.Path]:
    """The database, its log and the log's index."""
    return [folder / (DATABASE + end) for end in ("", "-wal", "-shm")]


def is_writable(folder: pathlib.Path) -> bool:
    """Whether a study's database can be written, and files be made beside it."""
    effective = os.access in os.supports_effective_ids
    return not linked(folder) and all(
        os.access(path, os.W_OK, effective_ids=effective) for path in (folder, folder / DATABASE)
    )


def linked(folder: pathlib.Path) -> list[pathlib.Path]:
    """Files of the database that are links, or second names of other files, as in a backup.

    SQLite writes into whatever is there, without a look at whose it is.
    """
    files = [*files_of(folder), folder / f"{DATABASE}-journal"]
    return [path for path in files if os.path.lexists(path) and not is_plain(path)]


def copy_store(folder: pathlib.Path, target: pathlib.Path) -> None:
    """Copy the database with all that is in its log; not a byte is written in `folder`."""
    database, log, index = files_of(folder)
    try:
        for _ in range(TRIES):
            before = stamp((database, log))
            if before[1] and before[1][3] and index.exists():  # a process has it open: locks hold
                _back_up(database, target / DATABASE)
                return
            for file in (database, log):
                with contextlib.suppress(FileNotFoundError):
                    shutil.copyfile(file, target / file.name)
            if before == stamp((database, log)):
                return
    except (OSError, sqlite3.Error) as error:
        raise SpiritlevelError(
            f"The study's store {str(database)!r} cannot be read: {error}. It cannot be written "
            "either, so it was to be copied to a temporary folder. Check that you may read it and "
            "that there is room."
        ) from error
    raise SpiritlevelError(
        f"The study's store {str(database)!r} is being written, and may only be read here. Try "
        "again in a moment."
    )


def _back_up(database: pathlib.Path, target: pathlib.Path) -> None:
    uri = f"{database.absolute().as_uri()}?mode=ro&readonly_shm=1"
    with (
        contextlib.closing(sqlite3.connect(uri, uri=True, timeout=PATIENCE)) as source,
        contextlib.closing(sqlite3.connect(target)) as copy,
    ):
        source.backup(copy)


def stamp(paths: Sequence[pathlib.Path]) -> Stamp:
    """What changes whenever one of the files does; None stands for one that is not there."""
    return tuple(_stamp(path) for path in paths)


def _stamp(path: pathlib.Path) -> tuple[str, int, int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return str(path), status.st_ino, status.st_mtime_ns, status.st_size
