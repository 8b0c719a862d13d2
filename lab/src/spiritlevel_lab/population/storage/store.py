"""One folder a study: SQLite is the truth, checkpoints lie beside it.

A process may be killed at any moment. A run's checkpoint is complete on disk before one
transaction writes its rows and calls it done, or failed where it was trained and could not be
measured: a reader sees all of that or nothing of it.
Several processes of one machine may share a store. SQLite's write-ahead log needs shared memory,
so processes of other machines must not: there the Ray executor's driver alone writes.
"""

from __future__ import annotations

import collections
import contextlib
import hashlib
import json
import os
import pathlib
import sqlite3
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

from spiritlevel.ground import files
from spiritlevel.ground.errors import SpiritlevelError
from spiritlevel.records.reading import parse_json

from ..run_results import RunResult
from ..settings.definition import Study
from ..settings.run import RunSettings
from . import checksums, schema
from .claims import Claim as Claim
from .claims import Counts as Counts
from .claims import add_runs, number_of_machine, release_lost, take, update_claimed
from .copies import copy_store, is_writable
from .database import (
    DATABASE,
    bring_up_to_date,
    check_tables,
    check_values,
    connect,
    damaged,
    explained,
    flush,
    replace_rows,
    selected,
    transaction,
    unusable,
    version_of,
)
from .refusals import CHECKPOINTS as CHECKPOINTS
from .refusals import refuse_links, refuse_loss, refuse_without_log, started_again

DEFINITION = "study.json"
CHECKPOINT = "checkpoint:"  # and a run's id: the entry with size and checksum of its weights
LEASE = 120.0  # seconds without a heartbeat after which a run may be taken over


class Store:
    """The runs of one study. Made by `Store.create` or `Store.open`."""

    def __init__(
        self,
        folder: pathlib.Path,
        connection: sqlite3.Connection,
        copy: tempfile.TemporaryDirectory[str] | None = None,
        *,
        is_made_here: bool = False,
    ) -> None:
        self.folder = folder
        self.read_only = copy is not None
        self.is_made_here = is_made_here  # from a study of the caller's, not found in a folder
        self._connection = connection
        self._copy = copy  # where the store itself may only be read
        self._definition: tuple[str, Study] | None = None

    @classmethod
    def create(cls, folder: str | os.PathLike[str], study: Study) -> Store:
        """The store of `study`: made, or opened where it is there; more runs may be added to it.

        A folder that holds runs which `study` does not have is refused.
        """
        path = files.as_path(folder, what="study's folder")
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SpiritlevelError(
                f"The study's folder {str(path)!r} cannot be made: {error.strerror or error}. "
                "Choose another --out."
            ) from error
        refuse_loss(path)
        refuse_links(path)
        with contextlib.ExitStack() as undo:
            undo.enter_context(started_again(path))
            store = undo.enter_context(cls(path, connect(path), is_made_here=True))
            with store._writing():
                refuse_without_log(store._connection, path, version_of(store._connection))
                bring_up_to_date(store._connection)
                check_tables(store._connection)
                checksums.keep(store._connection)
                add_runs(store._connection, path, study)
                refuse_without_log(store._connection, path, schema.VERSION)
            store._select("PRAGMA wal_checkpoint(PASSIVE)")  # a copy without the log has the runs
            store.write_definition()
            undo.pop_all()
        return store

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Store:
        """The store in a folder, which must be there; one that cannot be written can be read."""
        path = files.as_path(folder, what="study's folder")
        refuse_loss(path)
        if not (path / DATABASE).is_file():
            raise SpiritlevelError(
                f"The folder {str(path)!r} must hold a study ({DATABASE}). There is none. Start "
                "one with `spiritlevel study run`, or check the path."
            )
        with contextlib.ExitStack() as undo:
            copy = None
            if not is_writable(path):
                copy = tempfile.TemporaryDirectory(prefix="spiritlevel-")
                undo.callback(copy.cleanup)
                copy_store(path, pathlib.Path(copy.name))
            store = cls(path, connect(path if copy is None else pathlib.Path(copy.name)), copy)
            undo.enter_context(store)
            with explained(path):
                version = version_of(store._connection)
                refuse_without_log(store._connection, path, version)
            if version == 0:
                raise SpiritlevelError(
                    f"The study in {str(path)!r} was stopped before it had any runs. Start it "
                    "again with `spiritlevel study run`."
                )
            if version < schema.VERSION:
                with transaction(store._connection, path):
                    bring_up_to_date(store._connection)
            check_values(store._connection, path)
            with explained(path):
                checksums.keep(store._connection)
            undo.pop_all()
        return store

    def close(self) -> None:
        """Close the database."""
        self._connection.close()
        if self._copy is not None:
            self._copy.cleanup()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- reading -------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The name of the study."""
        return str(parse_json(self._definition_text())["name"])

    @property
    def study(self) -> Study:
        """The definition that the runs were made from."""
        text = self._definition_text()
        if self._definition is None or self._definition[0] != text:
            # Thousands of runs take seconds to be read.
            self._definition = text, Study.from_dict(parse_json(text))
        return self._definition[1]

    def write_definition(self) -> None:
        """Put the definition beside the database, to be read by people, where it is not yet."""
        definition = parse_json(self._definition_text())
        content = f"{json.dumps(definition, indent=2, ensure_ascii=False)}\n".encode()
        path = self.folder / DEFINITION
        if not self.read_only and (not files.is_plain(path) or path.read_bytes() != content):
            files.write_atomically(path, content)

    def _definition_text(self) -> str:
        rows = self._select("SELECT value FROM meta WHERE key = 'study'")
        if not rows:
            raise damaged(self.folder, "it has no definition of the study")
        return str(rows[0][0])

    def checkpoint(self, id_: str) -> pathlib.Path:
        """Where a run's weights are, if it has any."""
        files.check_name(id_, what="run's id", advice="The store is damaged or was edited.")
        return self.folder / CHECKPOINTS / f"{id_}.safetensors"

    def counts(self) -> Counts:
        """How many runs are in each state."""
        return Counts(**dict(self._select("SELECT status, count(*) FROM runs GROUP BY status")))

    def states(self) -> dict[str, str]:
        """The state of each run by its id: pending, running, done or failed."""
        return dict(self._select("SELECT id, status FROM runs"))

    def settings(self) -> list[RunSettings]:
        """The settings of all runs, in the order of the grid."""
        rows = self._select("SELECT settings, axes FROM runs ORDER BY position")
        return [RunSettings.from_json(settings, axes) for settings, axes in rows]

    def rows(self, table: str) -> list[dict[str, Any]]:
        """All rows of a table, runs in the order of the grid.

        The tables are "runs", "epochs", "measurements" (at the end of training) and
        "epoch_measurements" (while it went on).
        """
        return list(self.each_row(table))

    def each_row(self, table: str, columns: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
        """The same one by one, for what does not fit into memory; `columns`: these and the run."""
        with explained(self.folder):
            yield from selected(self._connection, table, columns)

    def entries(self, prefix: str) -> dict[str, Any]:
        """What is known under names that begin so, by the rest of the name."""
        rows = self._select("SELECT key, value FROM meta")
        return {k[len(prefix) :]: json.loads(v) for k, v in rows if k.startswith(prefix)}

    def entry(self, key: str) -> Any:
        """What is known under a name; None if nothing is."""
        rows = self._select("SELECT value FROM meta WHERE key = ?", key)
        return json.loads(rows[0][0]) if rows else None

    def update_entry(self, key: str, change: Callable[[Any], Any]) -> Any:
        """Replace an entry by what `change` makes of it. No other process can write in between."""
        with self._writing():
            value = change(self.entry(key))
            content = (key, json.dumps(value, sort_keys=True))
            self._connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", content)
        return value

    def problems(self) -> list[str]:
        """What is wrong with the database file: damaged pages; an error where a row has changed."""
        if found := [text for [text] in self._select("PRAGMA integrity_check") if text != "ok"]:
            return found
        with explained(self.folder):
            check_tables(self._connection)
        for table in ("runs", *schema.COLUMNS):
            collections.deque(self.each_row(table), maxlen=0)  # which compares each checksum
        return []

    def machines(self) -> dict[int, dict[str, Any]]:
        """What the runs were run on, by the number in their rows."""
        machines = self._select("SELECT id, description FROM machines")
        return {number: json.loads(description) for number, description in machines}

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
            release_lost(self._connection, lease)
            waiting = self._connection.execute(
                "SELECT id FROM runs WHERE status = 'pending' ORDER BY seed, position"
            )
            first = next((id_ for [id_] in waiting if among is None or id_ in among), None)
            if first is None:
                return []
            group = group_of(first)
            others = [id_ for [id_] in waiting if id_ in group] if len(group) > 1 else []
            waiting.close()
            return [take(self._connection, worker, id_) for id_ in (first, *others)]

    def release_lost(self, *, lease: float = LEASE) -> None:
        """Give the runs of workers that are gone back to those that wait."""
        with self._writing():
            release_lost(self._connection, lease)

    def deaths(self) -> dict[str, int]:
        """How many workers died or fell silent on each run."""
        return dict(self._select("SELECT id, deaths FROM runs WHERE deaths > 0"))

    def fail_deadly(self, allowed: Callable[[str], int], error: str) -> None:
        """Give up on runs that wait after more than `allowed` deaths of workers."""
        with self._writing():
            release_lost(self._connection, LEASE)
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
                update_claimed(self._connection, claim, heartbeat=time.time())

    def release(self, claim: Claim) -> None:
        """Give a run back, as if it had not been taken."""
        with self._writing():
            update_claimed(self._connection, claim, status="pending", worker=None, heartbeat=None)

    def finish(self, claim: Claim, result: RunResult) -> bool:
        """Keep the result: the checkpoint first, then all rows and the state in one transaction.

        A result with an error fails the run, and takes the place of what an earlier try left.
        False if the run was taken over meanwhile: then the other worker's result counts.
        """
        path = self.checkpoint(claim.id)
        files.own_folder(self.folder, CHECKPOINTS)
        if result.checkpoint:  # a task may have no network
            files.write_atomically(path, result.checkpoint)
            flush(path)
            flush(path.parent)
        with self._writing():
            ended = update_claimed(
                self._connection,
                claim,
                status="done" if result.error is None else "failed",
                finished=time.time(),
                machine=number_of_machine(self._connection, result.machine),
                **{name: getattr(result, name) for name in schema.OF_RESULT},
            )
            if ended:
                self._record_checkpoint(claim.id, result.checkpoint)
                for table in schema.COLUMNS:
                    replace_rows(self._connection, table, claim.id, getattr(result, table))
        files.remove_leftovers(path)  # of workers that were killed on this run
        return ended

    def _record_checkpoint(self, id_: str, content: bytes) -> None:
        key = CHECKPOINT + id_
        self._connection.execute("DELETE FROM meta WHERE key = ?", (key,))
        if content:
            facts = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            self._connection.execute("INSERT INTO meta VALUES (?, ?)", (key, json.dumps(facts)))

    def fail(self, claim: Claim, error: str) -> None:
        """Keep why a run could not be completed."""
        with self._writing():
            update_claimed(
                self._connection, claim, status="failed", finished=time.time(), error=error
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

    def _select(self, query: str, *values: object) -> list[Any]:
        with explained(self.folder):
            return self._connection.execute(query, values).fetchall()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """A transaction; other processes wait for their turn."""
        if self.read_only:
            refuse_links(self.folder)
            raise unusable(self.folder, PermissionError("it may be read, but not written"))
        with transaction(self._connection, self.folder):
            yield
