"""A study of a second, what of its store must not depend on how it was run, and workers for it."""

import contextlib
import os
import pathlib
import signal
import sqlite3
import sys

from spiritlevel.cli.app import app
from spiritlevel.ground.files import write_atomically
from spiritlevel_lab import Store, Study
from spiritlevel_lab.population.executors import local, vmap
from spiritlevel_lab.population.executors.progress import ProgressReporter
from spiritlevel_lab.population.storage import checksums

TABLES = ("runs", "epochs", "measurements", "epoch_measurements")
FREE = ("worker", "heartbeat", "attempt", "deaths", "started", "finished", "seconds")


def tiny(**changes) -> Study:
    """12 runs of networks with 354 weights."""
    fields = {
        "name": "tiny",
        "model": {"name": "mlp", "hidden": 4},
        "data": {"name": "digits", "samples": 60},
        "training": {"epochs": 2, "batch_size": 20, "momentum": 0.9},
        "grid": {"lr": [0.1, 0.01]},
        "seeds": 6,
        "measures": ["head.trace", "norms.weight"],
    }
    return Study.from_dict(fields | changes)


def lasting(folder) -> dict:
    """All that must come out the same, to the last bit: rows of every table, and weights."""
    with Store.open(folder) as store:
        found = {table: store.rows(table) for table in TABLES}
        for row in found["runs"]:
            for name in FREE:
                row.pop(name)
        done = [run["id"] for run in found["runs"] if run["status"] == "done"]
        found["weights"] = [store.checkpoint(id_).read_bytes() for id_ in done]
        found["files"] = sorted(file.name for file in (store.folder / "checkpoints").iterdir())
    return found


def seal(folder) -> None:
    """What a test wrote into a store counts as what the store wrote."""
    with contextlib.closing(sqlite3.connect(folder / "runs.sqlite")) as connection, connection:
        checksums.seal_all(connection)


def without_checksums(folder) -> None:
    """Take a store back to the format before checksums."""
    with contextlib.closing(sqlite3.connect(folder / "runs.sqlite")) as connection, connection:
        connection.execute("DROP TABLE checksums")
        connection.execute("PRAGMA user_version = 2")


def workspace(folder: str) -> None:
    with Store.open(folder) as store:
        local.run_here(store)


def work_together(folder: str) -> None:
    with Store.open(folder) as store:
        vmap.run_together(store)


def command(*arguments: str, said: str, trains: str | None = None) -> None:
    """The command line, its stderr in a file; the file `trains` is there after an epoch."""
    sys.stderr = open(said, "w", buffering=1)  # noqa: SIM115 (open as long as the process)
    tell = ProgressReporter.epoch

    def epoch(reporter: ProgressReporter, done: int, total: int) -> None:
        tell(reporter, done, total)
        if trains is not None and done == 1:
            pathlib.Path(trains).touch()

    ProgressReporter.epoch = epoch
    app(list(arguments))


def work_until_statement(folder: str, number: int) -> None:
    """As `work`, but killed just before the given SQL statement."""
    left = [number]

    def count(_: str) -> None:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    with Store.open(folder) as store:
        store._connection.set_trace_callback(count)
        local.run_here(store)


def write_half(path: str) -> None:
    """Killed before the file that was written takes its name."""
    os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    write_atomically(path, b"half")
