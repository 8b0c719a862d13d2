"""Stores that would lose something, or damage something else, if work on them went on."""

from __future__ import annotations

import contextlib
import pathlib
import sqlite3
from collections.abc import Iterator

from spiritlevel.ground.errors import SpiritlevelError

from .copies import files_of, linked
from .database import DATABASE, damaged
from .log import log_is_damaged

CHECKPOINTS = "checkpoints"


def refuse_loss(folder: pathlib.Path) -> None:
    """Raise if the database is gone and weights are there, or if SQLite would skip rows of it."""
    database, log, _ = files_of(folder)
    lost = not database.is_file() or database.stat().st_size == 0
    if lost and _weights(folder):
        raise damaged(folder, "it is missing or empty, and there are weights of its runs")
    if log_is_damaged(log):
        raise damaged(folder, f"bytes of its log {log.name!r} have changed")


def refuse_without_log(connection: sqlite3.Connection, folder: pathlib.Path, version: int) -> None:
    """Raise if there are weights of runs that the database knows nothing of."""
    weights = _weights(folder)  # first: another process may begin a run meanwhile
    if version == 0 and weights:
        raise _log_is_lost(folder, len(weights))
    if weights:
        waiting = connection.execute("SELECT id FROM runs WHERE attempt = 0")
        if lost := weights & {id_ for [id_] in waiting}:
            raise _log_is_lost(folder, len(lost))


def refuse_links(folder: pathlib.Path) -> None:
    """Raise if writing the database would write into files elsewhere."""
    if links := linked(folder):
        raise SpiritlevelError(
            f"The study's store in {str(folder)!r} may be read, but not written: "
            f"{str(links[0])!r} is a link, or has a second name elsewhere, and what it leads to "
            "may belong to something else. Make a copy that follows links (cp -rL) and go on with "
            "that."
        )


@contextlib.contextmanager
def started_again(folder: pathlib.Path) -> Iterator[None]:
    """Where a study that has no runs yet cannot be made, say so: there is nothing to resume."""
    try:
        yield
    except SpiritlevelError as error:
        if not isinstance(error.__cause__, sqlite3.OperationalError) or _has_runs(folder):
            raise
        raise SpiritlevelError(
            f"The study could not be started in {str(folder)!r}: {error.__cause__}. Nothing is "
            "lost. Make room on the disk, check that you may write there, and give the same "
            "command again."
        ) from error


def _has_runs(folder: pathlib.Path) -> bool:
    with contextlib.closing(sqlite3.connect(folder / DATABASE)) as connection:
        try:
            return bool(connection.execute("SELECT count(*) FROM runs").fetchone()[0])
        except sqlite3.Error:
            return False


def _weights(folder: pathlib.Path) -> set[str]:
    return {path.stem for path in (folder / CHECKPOINTS).glob("*.safetensors")}


def _log_is_lost(folder: pathlib.Path, count: int) -> SpiritlevelError:
    return damaged(
        folder,
        f"there are weights of {count} runs that it knows nothing of, so its newest rows are "
        f"missing. They were in its log {DATABASE}-wal, which was not copied with it, or deleted. "
        "Put that file back beside it, or copy the store once more while nobody writes to it",
    )
