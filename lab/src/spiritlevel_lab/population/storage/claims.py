"""Which worker has which run: claims, the states of runs, and names of workers."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import platform
import sqlite3
import time
import uuid

from spiritlevel.ground.errors import SpiritlevelError

from ..settings.definition import Study
from ..settings.run import RunSettings


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


# -- statements within a transaction ---------------------------------------------------------------


def add_runs(connection: sqlite3.Connection, folder: pathlib.Path, study: Study) -> None:
    """Put in the runs of a study that are not there yet; refuse a study that lacks some."""
    runs = study.runs()
    have = {row[0] for row in connection.execute("SELECT id FROM runs")}
    if lost := have - {run.id for run in runs}:
        raise SpiritlevelError(
            f"The folder {str(folder)!r} holds a study with other settings: {len(lost)} of its "
            f"{len(have)} runs are not in {study.name!r}. Choose another --out, or continue that "
            f"study with `spiritlevel study resume {folder}`."
        )
    connection.executemany(
        "INSERT INTO runs (id, position, settings, axes, seed) VALUES (?, ?, ?, ?, ?) "
        "ON CONFLICT (id) DO UPDATE SET position = excluded.position, axes = excluded.axes",
        [
            (each.id, i, each.canonical, json.dumps(each.axes), each.seed)
            for i, each in enumerate(runs)
        ],
    )
    text = json.dumps(study.to_dict())
    connection.execute("INSERT OR REPLACE INTO meta VALUES ('study', ?)", (text,))


def take(connection: sqlite3.Connection, worker: str, id_: str) -> Claim:
    """Give a run to a worker."""
    settings, axes, attempt = connection.execute(
        "SELECT settings, axes, attempt FROM runs WHERE id = ?", (id_,)
    ).fetchone()
    now = time.time()
    connection.execute(
        "UPDATE runs SET status = 'running', worker = ?, heartbeat = ?, started = ?, "
        "attempt = attempt + 1, error = NULL WHERE id = ?",
        (worker, now, now, id_),
    )
    return Claim(RunSettings.from_json(settings, axes), id_, worker, attempt + 1)


def update_claimed(connection: sqlite3.Connection, claim: Claim, **values: object) -> bool:
    """Set columns of a run, unless it was taken over meanwhile."""
    updated = connection.execute(
        f"UPDATE runs SET {', '.join(f'{name} = ?' for name in values)} "
        "WHERE id = ? AND worker = ? AND attempt = ? AND status = 'running'",
        (*values.values(), claim.id, claim.worker, claim.attempt),
    )
    return updated.rowcount == 1


def release_lost(connection: sqlite3.Connection, lease: float) -> None:
    """Let the runs of workers wait again that have ended, or were silent for so many seconds."""
    oldest = time.time() - lease
    lost = [
        (id_,)
        for id_, worker, heartbeat in connection.execute(
            "SELECT id, worker, heartbeat FROM runs WHERE status = 'running'"
        )
        if heartbeat < oldest or is_dead(worker)
    ]
    connection.executemany(
        "UPDATE runs SET status = 'pending', worker = NULL, heartbeat = NULL, "
        "deaths = deaths + 1 WHERE id = ?",
        lost,
    )


def number_of_machine(connection: sqlite3.Connection, description: str) -> int:
    """The number of a machine in the store, which it gets at its first run."""
    connection.execute("INSERT OR IGNORE INTO machines (description) VALUES (?)", (description,))
    found = connection.execute("SELECT id FROM machines WHERE description = ?", (description,))
    return int(found.fetchone()[0])


# -- names of workers ------------------------------------------------------------------------------


def new_worker() -> str:
    """A unique name: machine, process number, start time, and a random part."""
    pid = os.getpid()
    return f"{_here()}|{pid}|{_birth(pid)}|{uuid.uuid4().hex[:8]}"


def is_dead(worker: str) -> bool:
    """Whether the worker's process has ended; False for another machine, where one cannot tell."""
    where, pid, birth, _ = worker.rsplit("|", 3)
    if where != _here() or os.name == "nt":  # on Windows os.kill ends the process
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    # Process numbers are reused: the process that has it now may have started later. A zombie is
    # dead too.
    now = _birth(int(pid))
    return bool(birth and now) and now != birth


@functools.cache
def _here() -> str:
    """This boot of this machine; a container has its own process numbers."""
    parts = [platform.node()]
    with contextlib.suppress(OSError):
        parts.append(pathlib.Path("/proc/sys/kernel/random/boot_id").read_text("utf-8").strip()[:8])
    with contextlib.suppress(OSError):
        parts.append(os.readlink("/proc/self/ns/pid"))
    return "/".join(parts)


def _birth(pid: int) -> str:
    """When the process started; "ended" for a zombie; "" if unknown."""
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text("utf-8")
    except OSError:
        return ""
    fields = text.rpartition(")")[2].split()  # the command's name may contain spaces
    return "ended" if fields[0] in "ZX" else fields[19]
