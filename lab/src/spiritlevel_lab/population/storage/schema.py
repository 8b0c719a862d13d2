"""The tables of a study's store."""

from __future__ import annotations

from dataclasses import fields

from ..run_results import EpochRow, MeasurementRow

VERSION = 3
VALUE = """
        measure TEXT NOT NULL,
        layer TEXT NOT NULL, -- '' is the whole network
        value REAL NOT NULL,
        stderr REAL,
        data_stderr REAL,
        exact INTEGER NOT NULL,
        status TEXT NOT NULL,
        text TEXT NOT NULL,"""
EPOCH_MEASUREMENTS = f"""
    CREATE TABLE epoch_measurements (
        run TEXT NOT NULL REFERENCES runs (id),
        epoch INTEGER NOT NULL,{VALUE}
        PRIMARY KEY (run, epoch, measure, layer)
    ) WITHOUT ROWID
    """
CHECKSUMS = """
    CREATE TABLE checksums (
        part TEXT NOT NULL, -- a table
        key TEXT NOT NULL, -- a row of meta, machines or runs; elsewhere a run, for all its rows
        sha256 TEXT NOT NULL,
        PRIMARY KEY (part, key)
    ) WITHOUT ROWID
    """
TABLES = (
    CHECKSUMS,
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    """
    CREATE TABLE machines (
        id INTEGER PRIMARY KEY,
        description TEXT NOT NULL UNIQUE -- JSON: chip, threads, versions of torch and Python
    )
    """,
    """
    CREATE TABLE runs (
        id TEXT PRIMARY KEY,
        position INTEGER NOT NULL, -- in the order of the grid
        settings TEXT NOT NULL, -- JSON
        axes TEXT NOT NULL, -- JSON: the values of the grid
        seed INTEGER NOT NULL,
        status TEXT NOT NULL DEFAULT 'pending'
            CHECK (status IN ('pending', 'running', 'done', 'failed')),
        worker TEXT,
        heartbeat REAL,
        attempt INTEGER NOT NULL DEFAULT 0,
        deaths INTEGER NOT NULL DEFAULT 0, -- of workers that had it
        started REAL,
        finished REAL,
        seconds REAL, -- of work
        machine INTEGER REFERENCES machines (id),
        outcome TEXT, -- why it ended: epochs, train_loss, trend_rule, diverged, ...
        num_train INTEGER,
        num_test INTEGER,
        error TEXT
    ) WITHOUT ROWID
    """,
    """
    CREATE TABLE epochs (
        run TEXT NOT NULL REFERENCES runs (id),
        epoch INTEGER NOT NULL,
        train_loss REAL NOT NULL,
        train_accuracy REAL NOT NULL,
        test_loss REAL NOT NULL,
        test_accuracy REAL NOT NULL,
        validation_loss REAL, -- NULL: the study has no validation data
        validation_accuracy REAL,
        PRIMARY KEY (run, epoch)
    ) WITHOUT ROWID
    """,
    EPOCH_MEASUREMENTS,
    f"""
    CREATE TABLE measurements (
        run TEXT NOT NULL REFERENCES runs (id),{VALUE}
        PRIMARY KEY (run, measure, layer)
    ) WITHOUT ROWID
    """,
)
UPGRADES = {  # statements that bring a store of this version to the next
    1: (
        "ALTER TABLE epochs ADD COLUMN validation_loss REAL",
        "ALTER TABLE epochs ADD COLUMN validation_accuracy REAL",
        EPOCH_MEASUREMENTS,
    ),
    # An index could say something else than its table.
    2: (CHECKSUMS, "DROP INDEX IF EXISTS runs_by_status"),
}
MEASURED = [field.name for field in fields(MeasurementRow)]
COLUMNS = {  # of the tables that hold a run's rows; a result has the rows under the same name
    "epochs": [field.name for field in fields(EpochRow)],
    "measurements": MEASURED,
    "epoch_measurements": ["epoch", *MEASURED],
}
RUNS = (
    *("id", "position", "settings", "axes", "seed", "status", "worker", "heartbeat", "attempt"),
    *("deaths", "started", "finished", "seconds", "machine", "outcome", "num_train", "num_test"),
    "error",
)
KEYS = {  # of the rows that a run has in a table, in their order
    "epochs": ("epoch",),
    "measurements": ("measure", "layer"),
    "epoch_measurements": ("epoch", "measure", "layer"),
}
OF_RESULT = ("error", "seconds", "outcome", "num_train", "num_test")  # that a run's row has, too
