"""One folder a study: SQLite is the truth, checkpoints lie beside it.

A process may be killed at any moment. A run's checkpoint is complete on disk before one
transaction writes its rows and calls it done, or failed where it was trained and could not be
measured: a reader sees all of that or nothing of it.
Several processes of one machine may share a store. SQLite's write-ahead log needs shared memory,
so processes of other machines must not: there the Ray executor's driver alone writes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pathlib
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from ...errors import SpiritlevelError
from ...files import remove_leftovers, write_atomically
from ...files.names import as_path
from ..runs.results import RunResult
from ..settings.definition import Study
from ..settings.run import RunSettings
from . import schema
from .abstract_store import CHECKPOINTS, AbstractStore
from .claims import Claim as Claim
from .claims import Counts as Counts
from .claims import is_dead
from .copies import copy_store, is_writable
from .database import DATABASE, check_values, connect, damaged, flush, stored

DEFINITION = "study.json"
CHECKPOINT = "checkpoint:"  # and a run's id: the entry with size and checksum of its weights
LEASE = 120.0  # seconds without a heartbeat after which a run may be taken over


class Store(AbstractStore):
    """The runs of one study. Made by `Store.create` or `Store.open`."""

    # -- opening ---------------------------------------------------------------------------

    @classmethod
    def create(cls, folder: str | os.PathLike[str], study: Study) -> Store:
        """The store of `study`: made, or opened where it is there; more runs may be added to it.

        A folder that holds runs which `study` does not have is refused.
        """
        path = as_path(folder, what="study's folder")
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SpiritlevelError(
                f"The study's folder {str(path)!r} cannot be made: {error.strerror or error}. "
                "Choose another --out."
            ) from error
        _refuse_loss(path)
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
        """The store in a folder, which must be there; one that cannot be written can be read."""
        path = as_path(folder, what="study's folder")
        _refuse_loss(path)
        if not (path / DATABASE).is_file():
            raise SpiritlevelError(
                f"The folder {str(path)!r} must hold a study ({DATABASE}). There is none. Start "
                "one with `spiritlevel study run`, or check the path."
            )
        if is_writable(path):
            store = cls(path, connect(path))
        else:
            copy = tempfile.TemporaryDirectory(prefix="spiritlevel-")
            with contextlib.ExitStack() as undo:
                undo.callback(copy.cleanup)
                copy_store(path, pathlib.Path(copy.name))
                store = cls(path, connect(pathlib.Path(copy.name)))
                undo.pop_all()
            store._copy = copy
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
        store.read_only = store._copy is not None
        return store

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

    # -- working ---------------------------------------------------------------------------

    def claim(
        self, worker: str, *, among: Collection[str] | None = None, lease: float = LEASE
    ) -> Claim | None:
        """Take a run that waits, or whose worker is gone; None if there is none.

        One seed of every setting comes before the next seed: a study that is stopped early has seen
        all of its settings.

        Args:
            worker: the name of whoever takes it.
            among: ids to choose from; None: all.
            lease: seconds after which a silent worker counts as gone.
        """
        claims = self.claim_group(worker, lambda id_: {id_}, among=among, lease=lease)
        return claims[0] if claims else None

    def claim_group(
        self,
        worker: str,
        group_of: Callable[[str], Collection[str]],
        *,
        among: Collection[str] | None = None,
        lease: float = LEASE,
    ) -> list[Claim]:
        """Take the next run, as `claim` does, and at once all runs of its group that wait too.

        `group_of` gives the ids of the runs that belong together with a run.
        """
        with self._writing():
            self._release_lost(lease)
            waiting = self._connection.execute(
                "SELECT id FROM runs WHERE status = 'pending' ORDER BY seed, position"
            )
            first = next((id_ for [id_] in waiting if among is None or id_ in among), None)
            if first is None:
                return []
            group = group_of(first)
            others = [id_ for [id_] in waiting if id_ in group] if len(group) > 1 else []
            waiting.close()
            return [self._claim(worker, id_) for id_ in (first, *others)]

    def _claim(self, worker: str, id_: str) -> Claim:
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
                self._record_checkpoint(claim.id, result.checkpoint)
                for table, columns in schema.COLUMNS.items():
                    self._replace(table, claim.id, columns, getattr(result, table))
        remove_leftovers(path)  # of workers that were killed on this run
        return ended

    def _record_checkpoint(self, id_: str, content: bytes) -> None:
        self._connection.execute("DELETE FROM meta WHERE key = ?", (CHECKPOINT + id_,))
        if content:
            facts = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            entry = (CHECKPOINT + id_, json.dumps(facts))
            self._connection.execute("INSERT INTO meta VALUES (?, ?)", entry)

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

    def wait_again(self, ids: Iterable[str]) -> None:
        """Let finished runs wait again; their rows stay until they are finished once more."""
        with self._writing():
            self._connection.executemany(
                "UPDATE runs SET status = 'pending', worker = NULL WHERE id = ?",
                [(id_,) for id_ in ids],
            )

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


def _refuse_loss(folder: pathlib.Path) -> None:
    """Raise if the database is gone and weights are there: new runs would take their place."""
    database = folder / DATABASE
    lost = not database.is_file() or database.stat().st_size == 0
    if lost and any((folder / CHECKPOINTS).glob("*.safetensors")):
        raise damaged(folder, "it is missing or empty, and there are weights of its runs")


def _pretty(content: object) -> bytes:
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()
