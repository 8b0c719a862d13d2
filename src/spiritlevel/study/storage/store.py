"""One folder a study: SQLite is the truth, checkpoints lie beside it.

A process may be killed at any moment. A run's checkpoint is complete on disk before one
transaction writes its rows and calls it done, or failed where it was trained and could not be
measured: a reader sees all of that or nothing of it.
Several processes of one machine may share a store. SQLite's write-ahead log needs shared memory,
so processes of other machines must not: there the Ray executor's driver alone writes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import sqlite3
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from ...errors import SpiritlevelError
from ...files import remove_leftovers, write_atomically
from ...files.names import check_name
from ...reading import parse_json
from ..executors.workers import is_dead
from ..runs.results import RunResult
from ..settings.definition import Study
from ..settings.run import RunSettings
from . import schema
from .database import DATABASE, FAILURES, connect, flush, loaded, stored, unusable
from .value_types import check_values

DEFINITION, CHECKPOINTS = "study.json", "checkpoints"
LEASE = 120.0  # seconds without a heartbeat after which a run may be taken over


@dataclasses.dataclass(frozen=True)
class Claim:
    """A run that one worker has taken; `attempt` tells a later taker from an earlier one."""

    settings: RunSettings
    id: str
    worker: str
    attempt: int


@dataclasses.dataclass(frozen=True)
class Counts:
    """How many runs are in each state."""

    pending: int = 0
    running: int = 0
    done: int = 0
    failed: int = 0

    @property
    def total(self) -> int:
        """The number of runs."""
        return self.pending + self.running + self.done + self.failed

    @property
    def remaining(self) -> int:
        """Not ended in one way or the other."""
        return self.pending + self.running


class Store:
    """The runs of one study. Made by `Store.create` or `Store.open`."""

    def __init__(self, folder: pathlib.Path, connection: sqlite3.Connection) -> None:
        self.folder = folder
        self._connection = connection

    # -- opening ---------------------------------------------------------------------------

    @classmethod
    def create(cls, folder: str | os.PathLike[str], study: Study) -> Store:
        """The store of `study`: made, or opened where it is there; more runs may be added to it.

        A folder that holds runs which `study` does not have is refused.
        """
        path = pathlib.Path(folder)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SpiritlevelError(
                f"The study's folder {str(path)!r} cannot be made: {error.strerror or error}. "
                "Choose another --out."
            ) from error
        store = cls(path, connect(path))
        try:
            with store._writing():
                if store._version() == 0:
                    for statement in schema.TABLES:
                        store._connection.execute(statement)
                    store._connection.execute(f"PRAGMA user_version = {schema.VERSION}")
                store._upgrade()
                store._add_runs(study)
            write_atomically(path / DEFINITION, _pretty(study.to_dict()))
        except BaseException:
            store.close()
            raise
        return store

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Store:
        """The store in a folder, which must be there."""
        path = pathlib.Path(folder)
        if not (path / DATABASE).is_file():
            raise SpiritlevelError(
                f"The folder {str(path)!r} must hold a study ({DATABASE}). There is none. Start "
                "one with `spiritlevel study run`, or check the path."
            )
        store = cls(path, connect(path))
        try:
            version = store._version()
            if version == 0:
                raise SpiritlevelError(
                    f"The study in {str(path)!r} was stopped before it had any runs. Start it "
                    "again with `spiritlevel study run`."
                )
            if version < schema.VERSION:
                with store._writing():
                    store._upgrade()
            check_values(store._connection, path)
        except BaseException:
            store.close()
            raise
        return store

    def close(self) -> None:
        """Close the database."""
        self._connection.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _version(self) -> int:
        with self._explained():
            return int(self._connection.execute("PRAGMA user_version").fetchone()[0])

    def _upgrade(self) -> None:
        """Bring an older store up to date, inside a transaction; its rows stay as they are."""
        for version in range(self._version(), schema.VERSION):
            for statement in schema.UPGRADES[version]:
                self._connection.execute(statement)
            self._connection.execute(f"PRAGMA user_version = {version + 1}")

    def _add_runs(self, study: Study) -> None:
        runs = study.runs()
        have = {row[0] for row in self._connection.execute("SELECT id FROM runs")}
        if lost := have - {run.id for run in runs}:
            raise SpiritlevelError(
                f"The folder {str(self.folder)!r} holds a study with other settings: {len(lost)} "
                f"of its {len(have)} runs are not in {study.name!r}. Choose another --out, or "
                f"continue that study with `spiritlevel study resume {self.folder}`."
            )
        self._connection.executemany(
            "INSERT INTO runs (id, position, settings, axes, seed) VALUES (?, ?, ?, ?, ?) "
            "ON CONFLICT (id) DO UPDATE SET position = excluded.position, axes = excluded.axes",
            [
                (run.id, i, run.canonical, json.dumps(run.axes), run.seed)
                for i, run in enumerate(runs)
            ],
        )
        self._connection.execute(
            "INSERT OR REPLACE INTO meta VALUES ('study', ?)", (json.dumps(study.to_dict()),)
        )

    @property
    def study(self) -> Study:
        """The definition that the runs were made from."""
        [[text]] = self._select("SELECT value FROM meta WHERE key = 'study'")
        return Study.from_dict(parse_json(text))

    # -- working ---------------------------------------------------------------------------

    def claim(
        self, worker: str, *, among: Collection[str] | None = None, lease: float = LEASE
    ) -> Claim | None:
        """Take a run that waits, or whose worker is gone; None if there is none.

        Args:
            worker: the name of whoever takes it.
            among: ids to choose from; None: all.
            lease: seconds after which a silent worker counts as gone.
        """
        with self._writing():
            self._release_lost(lease)
            waiting = self._connection.execute(
                "SELECT id FROM runs WHERE status = 'pending' ORDER BY position"
            ).fetchall()
            available = [id_ for [id_] in waiting if among is None or id_ in among]
            if not available:
                return None
            id_ = available[0]
            settings, axes, attempt = self._connection.execute(
                "SELECT settings, axes, attempt FROM runs WHERE id = ?", (id_,)
            ).fetchone()
            now = time.time()
            self._connection.execute(
                "UPDATE runs SET status = 'running', worker = ?, heartbeat = ?, started = ?, "
                "attempt = attempt + 1, error = NULL WHERE id = ?",
                (worker, now, now, id_),
            )
        return Claim(RunSettings.from_json(settings, axes), id_, worker, attempt + 1)

    def _release_lost(self, lease: float) -> None:
        oldest = time.time() - lease
        lost = [
            (id_,)
            for id_, worker, heartbeat in self._connection.execute(
                "SELECT id, worker, heartbeat FROM runs WHERE status = 'running'"
            )
            if heartbeat < oldest or is_dead(worker)
        ]
        self._connection.executemany(
            "UPDATE runs SET status = 'pending', worker = NULL, heartbeat = NULL, "
            "deaths = deaths + 1 WHERE id = ?",
            lost,
        )

    def release_lost(self, *, lease: float = LEASE) -> None:
        """Give the runs of workers that are gone back to those that wait."""
        with self._writing():
            self._release_lost(lease)

    def deaths(self) -> dict[str, int]:
        """How many workers died or fell silent on each run."""
        return dict(self._select("SELECT id, deaths FROM runs WHERE deaths > 0"))

    def fail_deadly(self, allowed: Callable[[str], int], error: str) -> None:
        """Give up on runs that wait after more than `allowed` deaths of workers."""
        with self._writing():
            self._release_lost(LEASE)
            waiting = self._connection.execute(
                "SELECT id, deaths FROM runs WHERE status = 'pending' AND deaths > 0"
            ).fetchall()
            self._connection.executemany(
                "UPDATE runs SET status = 'failed', finished = ?, error = ? WHERE id = ?",
                [(time.time(), error, id_) for id_, count in waiting if count > allowed(id_)],
            )

    def attempts(self) -> int:
        """How many times a run was taken, over all runs."""
        [[total]] = self._select("SELECT coalesce(sum(attempt), 0) FROM runs")
        return int(total)

    def heartbeat(self, claims: Sequence[Claim]) -> None:
        """Say that these runs are still worked on."""
        with self._writing():
            for claim in claims:
                self._update_claimed(claim, "heartbeat = ?", time.time())

    def release(self, claim: Claim) -> None:
        """Give a run back, as if it had not been taken."""
        with self._writing():
            self._update_claimed(claim, "status = 'pending', worker = NULL, heartbeat = NULL")

    def finish(self, claim: Claim, result: RunResult) -> bool:
        """Keep the result: the checkpoint first, then all rows and the state in one transaction.

        A result with an error fails the run, and takes the place of what an earlier try left.
        False if the run was taken over meanwhile: then the other worker's result counts.
        """
        path = self.checkpoint(claim.id)
        if result.checkpoint:  # a task may have no network
            write_atomically(path, result.checkpoint)
            flush(path)
            flush(path.parent)
        with self._writing():
            self._connection.execute(
                "INSERT OR IGNORE INTO machines (description) VALUES (?)", (result.machine,)
            )
            ended = self._update_claimed(
                claim,
                "status = ?, error = ?, finished = ?, seconds = ?, outcome = ?, num_train = ?, "
                "num_test = ?, machine = (SELECT id FROM machines WHERE description = ?)",
                "done" if result.error is None else "failed",
                result.error,
                time.time(),
                result.seconds,
                result.outcome,
                result.num_train,
                result.num_test,
                result.machine,
            )
            if ended:
                for table, columns in schema.COLUMNS.items():
                    self._replace(table, claim.id, columns, getattr(result, table))
        remove_leftovers(path)  # of workers that were killed on this run
        return ended

    def fail(self, claim: Claim, error: str) -> None:
        """Keep why a run could not be completed."""
        with self._writing():
            self._update_claimed(
                claim, "status = 'failed', finished = ?, error = ?", time.time(), error
            )

    def retry_failed(self) -> int:
        """Let the failed runs wait again; how many there were."""
        with self._writing():
            updated = self._connection.execute(
                "UPDATE runs SET status = 'pending', worker = NULL, heartbeat = NULL "
                "WHERE status = 'failed'"
            )
        return updated.rowcount

    def _update_claimed(self, claim: Claim, changes: str, *values: object) -> bool:
        updated = self._connection.execute(
            f"UPDATE runs SET {changes} "
            "WHERE id = ? AND worker = ? AND attempt = ? AND status = 'running'",
            (*values, claim.id, claim.worker, claim.attempt),
        )
        return updated.rowcount == 1

    def _replace(self, table: str, run: str, columns: Sequence[str], rows: Sequence[Any]) -> None:
        self._connection.execute(f"DELETE FROM {table} WHERE run = ?", (run,))
        marks = ", ".join("?" * (len(columns) + 1))
        self._connection.executemany(
            f"INSERT INTO {table} (run, {', '.join(columns)}) VALUES ({marks})",
            [(run, *(stored(getattr(row, column)) for column in columns)) for row in rows],
        )

    # -- reading ---------------------------------------------------------------------------

    def checkpoint(self, id_: str) -> pathlib.Path:
        """Where a run's weights are, if it has any."""
        check_name(id_, what="run's id", advice="The store is damaged or was edited.")
        return self.folder / CHECKPOINTS / f"{id_}.safetensors"

    def counts(self) -> Counts:
        """How many runs are in each state."""
        return Counts(**dict(self._select("SELECT status, count(*) FROM runs GROUP BY status")))

    def settings(self) -> list[RunSettings]:
        """Of all runs, in the order of the grid."""
        rows = self._select("SELECT settings, axes FROM runs ORDER BY position")
        return [RunSettings.from_json(settings, axes) for settings, axes in rows]

    def rows(self, table: str) -> list[dict[str, Any]]:
        """All rows of a table, runs in the order of the grid.

        The tables are "runs", "epochs", "measurements" (at the end of training) and
        "epoch_measurements" (while it went on).
        """
        join = "" if table == "runs" else " JOIN runs ON run = id"
        with self._explained():
            cursor = self._connection.execute(
                f"SELECT {table}.* FROM {table}{join} ORDER BY {schema.ORDER[table]}"
            )
            names = [column[0] for column in cursor.description]
            return [dict(zip(names, map(loaded, row), strict=True)) for row in cursor]

    def machines(self) -> dict[int, dict[str, Any]]:
        """What the runs were run on, by the number in their rows."""
        machines = self._select("SELECT id, description FROM machines")
        return {number: json.loads(description) for number, description in machines}

    def _select(self, query: str) -> list[Any]:
        with self._explained():
            return self._connection.execute(query).fetchall()

    # -- transactions ----------------------------------------------------------------------

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """All statements or none; other processes wait for their turn."""
        with self._explained():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except FAILURES as error:
            raise unusable(self.folder, error) from error


def _pretty(content: object) -> bytes:
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()
