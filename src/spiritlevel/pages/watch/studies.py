"""How far a study is: counts, recent runs, failures, a measure against the gap, training curves."""

from __future__ import annotations

import json
import pathlib
import sqlite3
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from ...study.executors.pace import seconds_left
from ...study.storage.database import loaded
from ...study.storage.store import Counts
from ...study.table import targets_of
from . import database
from .reading import Unreadable, number

NEWEST = 1000  # finished runs in the pictures
RECENT = 50  # rows of a table
CURVES = ("train_loss", "train_accuracy", "test_loss", "test_accuracy")
EPOCH_COLUMNS = ("epoch", *CURVES)  # those that the stores of every version have
RUN_COLUMNS = (
    *("id", "axes", "seed", "status", "worker", "heartbeat", "started", "finished", "seconds"),
    *("outcome", "error", "position"),
)
Record = dict[str, Any]


def study_state(folder: pathlib.Path, measure: str) -> Record:
    """Plain types for JSON; the picture is of `measure`, or of the first where there is none."""
    return database.read(folder, lambda connection: _state(connection, measure))


def _state(connection: sqlite3.Connection, measure: str) -> Record:
    try:
        found = connection.execute("SELECT value FROM meta WHERE key = 'study'").fetchone()
        study = json.loads(found[0])
        name, description, grid = (study[key] for key in ("name", "description", "grid"))
        axes = [{"name": key, "values": values} for key, values in grid.items()]
        runs = _runs(connection)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise Unreadable(
            "The study's store is damaged: its definition or the settings of a run cannot be read "
            f"({error!r}). Run the study anew in another folder."
        ) from error
    done = [run for run in runs if run["status"] == "done"]
    newest = sorted(done, key=lambda run: (number(run["finished"]) or 0.0, run["position"]))
    newest = newest[-NEWEST:]
    ids = [run["id"] for run in newest]
    epochs = _epochs(connection, ids)
    names = _measures(connection, ids)
    chosen = measure if measure in names else next(iter(names), "")
    counts = _counts(runs)
    failed = [run for run in runs if run["status"] == "failed"]
    beats = [number(run["heartbeat"]) or 0.0 for run in runs if run["status"] == "running"]
    return {
        "name": name,
        "description": description,
        "axes": axes,
        "counts": {
            name: getattr(counts, name) for name in ("pending", "running", "done", "failed")
        },
        "total": counts.total,
        "seconds_left": seconds_left([_timed(run) for run in runs]),
        "last_sign": max(beats, default=None),
        "recent": [_recent(run, epochs.get(run["id"], ())) for run in _newest_first(runs)],
        "failures": [
            {"run": run["id"], "axes": run["axes"], "seed": run["seed"], "error": run["error"]}
            for run in sorted(failed, key=_ended, reverse=True)[:RECENT]
        ],
        "measures": names,
        "measure": chosen,
        "shown": len(newest),
        "points": _points(connection, chosen, newest, epochs),
        "curves": curves(list(epochs.values())),
    }


def _runs(connection: sqlite3.Connection) -> list[Record]:
    query = f"SELECT {', '.join(RUN_COLUMNS)} FROM runs ORDER BY position"
    found = [dict(zip(RUN_COLUMNS, row, strict=True)) for row in connection.execute(query)]
    return [run | {"axes": dict(json.loads(run["axes"]))} for run in found]


def _counts(runs: Sequence[Record]) -> Counts:
    statuses = [run["status"] for run in runs]
    return Counts(*(statuses.count(name) for name in ("pending", "running", "done", "failed")))


def _timed(run: Record) -> Record:
    """What the time left is told from; a damaged number is none."""
    times = ("heartbeat", "started", "finished", "seconds")
    return run | {column: number(run[column]) for column in times}


def _ended(run: Record) -> float:
    return number(run["finished"]) or number(run["started"]) or 0.0


def _newest_first(runs: Sequence[Record]) -> list[Record]:
    """Those at work, then those that ended last."""
    begun = [run for run in runs if run["status"] != "pending"]
    begun.sort(key=lambda run: (run["status"] != "running", -_ended(run), run["position"]))
    return begun[:RECENT]


def _recent(run: Record, epochs: Sequence[Record]) -> Record:
    last = epochs[-1] if epochs else {}
    return {
        "run": run["id"],
        "axes": run["axes"],
        "seed": run["seed"],
        "status": run["status"],
        "outcome": run["outcome"],
        "started": number(run["started"]),
        "seconds": number(run["seconds"]),
        "epochs": last.get("epoch"),
        **{column: number(last.get(column)) for column in CURVES},
    }


def _epochs(connection: sqlite3.Connection, ids: Sequence[str]) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    query = f"SELECT {', '.join(EPOCH_COLUMNS)} FROM epochs WHERE run = ? ORDER BY epoch"
    for id_ in ids:
        rows = connection.execute(query, (id_,)).fetchall()
        found[id_] = [dict(zip(EPOCH_COLUMNS, map(loaded, row), strict=True)) for row in rows]
    return found


def _measures(connection: sqlite3.Connection, ids: Sequence[str]) -> list[str]:
    names: dict[str, None] = {}
    query = "SELECT measure FROM measurements WHERE run = ? AND layer = '' ORDER BY measure"
    for id_ in ids:
        names |= dict.fromkeys(str(name) for [name] in connection.execute(query, (id_,)))
    return sorted(names)


def _points(
    connection: sqlite3.Connection,
    measure: str,
    newest: Sequence[Record],
    epochs: Mapping[str, Sequence[Record]],
) -> list[Record]:
    """The measure against the gap; runs that lack one of them, or have no number there, are out."""
    query = "SELECT value FROM measurements WHERE run = ? AND measure = ? AND layer = ''"
    points = []
    for run in newest:
        found = connection.execute(query, (run["id"], measure)).fetchone()
        rows = epochs[run["id"]]
        if found is None or not rows or any(number(rows[-1][name]) is None for name in CURVES):
            continue
        value, gap = number(found[0]), number(targets_of(rows[-1])["gap"])
        if value is not None and gap is not None:
            points.append({"x": value, "y": gap, "axes": run["axes"], "seed": run["seed"]})
    return points


def curves(runs: Sequence[Sequence[Record]]) -> Record:
    """By column and epoch: median and quartiles over the runs that got so far, and their number.

    >>> rows = [[{"epoch": 1, "train_loss": v}] for v in (1.0, 2.0, 3.0, 4.0, 5.0)]
    >>> curves(rows)["train_loss"]
    {'epoch': [1], 'low': [2.0], 'median': [3.0], 'high': [4.0], 'n': [5]}
    """
    found: Record = {}
    for column in CURVES:
        by_epoch: dict[int, list[float]] = {}
        for rows in runs:
            for row in rows:
                if (value := number(row.get(column))) is not None:
                    by_epoch.setdefault(row["epoch"], []).append(value)
        band: Record = {"epoch": [], "low": [], "median": [], "high": [], "n": []}
        for epoch in sorted(by_epoch):
            values = by_epoch[epoch]
            cuts = statistics.quantiles(values, n=4, method="inclusive") if values[1:] else values
            low, high = cuts[0], cuts[-1]
            each = (epoch, low, statistics.median(values), high, len(values))
            for name, value in zip(band, each, strict=True):
                band[name].append(value)
        found[column] = band
    return found
