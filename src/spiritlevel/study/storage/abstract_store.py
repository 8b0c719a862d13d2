"""What can be read of a study's store, and how its statements are carried out."""

from __future__ import annotations

import contextlib
import json
import pathlib
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from ...files.names import check_name
from ...reading import parse_json
from ..settings.definition import Study
from ..settings.run import RunSettings
from . import schema
from .claims import Counts
from .database import FAILURES, damaged, selected, unusable

CHECKPOINTS = "checkpoints"
AnyStore = TypeVar("AnyStore", bound="AbstractStore")


class AbstractStore:
    """An open store: its folder, its database, and what can be read of them."""

    def __init__(self, folder: pathlib.Path, connection: sqlite3.Connection) -> None:
        self.folder = folder
        self._connection = connection
        self._definition: tuple[str, Study] | None = None
        # Of a store that may only be read.
        self._copy: tempfile.TemporaryDirectory[str] | None = None
        self.read_only = False

    def close(self) -> None:
        """Close the database."""
        self._connection.close()
        if self._copy is not None:
            self._copy.cleanup()

    def __enter__(self: AnyStore) -> AnyStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def name(self) -> str:
        """Of the study."""
        return str(parse_json(self._definition_text())["name"])

    @property
    def study(self) -> Study:
        """The definition that the runs were made from."""
        text = self._definition_text()
        if self._definition is None or self._definition[0] != text:
            # Thousands of runs take seconds to be read and checked.
            self._definition = text, Study.from_dict(parse_json(text))
        return self._definition[1]

    def _definition_text(self) -> str:
        rows = self._select("SELECT value FROM meta WHERE key = 'study'")
        if not rows:
            raise damaged(self.folder, "it has no definition of the study")
        return str(rows[0][0])

    # -- reading ---------------------------------------------------------------------------

    def checkpoint(self, id_: str) -> pathlib.Path:
        """Where a run's weights are, if it has any."""
        check_name(id_, what="run's id", advice="The store is damaged or was edited.")
        return self.folder / CHECKPOINTS / f"{id_}.safetensors"

    def counts(self) -> Counts:
        """How many runs are in each state."""
        return Counts(**dict(self._select("SELECT status, count(*) FROM runs GROUP BY status")))

    def states(self) -> dict[str, str]:
        """Of all runs, by id: pending, running, done or failed."""
        return dict(self._select("SELECT id, status FROM runs"))

    def settings(self) -> list[RunSettings]:
        """Of all runs, in the order of the grid."""
        rows = self._select("SELECT settings, axes FROM runs ORDER BY position")
        return [RunSettings.from_json(settings, axes) for settings, axes in rows]

    def rows(self, table: str) -> list[dict[str, Any]]:
        """All rows of a table, runs in the order of the grid.

        The tables are "runs", "epochs", "measurements" (at the end of training) and
        "epoch_measurements" (while it went on).
        """
        return list(self.each_row(table))

    def each_row(self, table: str, columns: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
        """The rows of `rows` one by one, since all of them may not fit into memory.

        With `columns`, only these and the run.
        """
        with self._explained():
            yield from selected(self._connection, table, columns)

    def entries(self, prefix: str) -> dict[str, Any]:
        """What is known under names that begin so, by the rest of the name."""
        rows = self._select("SELECT key, value FROM meta")
        return {k[len(prefix) :]: json.loads(v) for k, v in rows if k.startswith(prefix)}

    def ids(self) -> set[str]:
        """Of all runs."""
        return {id_ for [id_] in self._select("SELECT id FROM runs")}

    def problems(self) -> list[str]:
        """What is wrong with the database file: damaged pages, missing tables."""
        checked = [text for [text] in self._select("PRAGMA quick_check") if text != "ok"]
        tables = {name for [name] in self._select("SELECT name FROM sqlite_master")}
        return checked + [f"no table {name!r}" for name in schema.ORDER if name not in tables]

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
        if self.read_only:
            raise unusable(self.folder, PermissionError("it may be read, but not written"))
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
