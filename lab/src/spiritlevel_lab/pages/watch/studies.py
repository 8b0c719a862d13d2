"""How far a study is: counts, recent runs, failures, a measure against the gap, training curves."""

from __future__ import annotations

import functools
import json
import math
import pathlib
import sqlite3
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...population.executors.progress import seconds_left
from ...population.outcome_names import LAST_EPOCH
from ...population.population import Population, Row
from ...population.population_statistics import default_target
from ...population.settings.definition import VARIANT, Study
from ...population.settings.networks import axes_of
from ...population.storage import schema
from ...population.storage.checksums import has_checksums, rows_of_run
from ...population.storage.database import loaded
from . import database
from .reading import Unreadable, number

NEWEST = 1000  # finished runs in the pictures
RECENT = 50  # rows of a table
# Those that the stores of every version have.
EPOCH_COLUMNS = ("run", "epoch", *LAST_EPOCH)
MEASUREMENT_COLUMNS = ("run", "measure", "layer", "value")


def study_state(folder: pathlib.Path, measure: str) -> Row:
    """What the page shows of a study, in plain types for JSON.

    The picture is of `measure`, or of the first measure where the study has none of that name.
    """
    return database.read(folder, lambda connection: _state(connection, measure))


def _state(connection: sqlite3.Connection, measure: str) -> Row:
    try:
        definition = connection.execute("SELECT value FROM meta WHERE key = 'study'").fetchone()
        study = json.loads(definition[0])
        name, description = study["name"], study["description"]
        axes = _axes(study)
        runs = _select(connection, "SELECT * FROM runs ORDER BY position")
        newest = _newest(runs)
        population = Population.from_tables(
            list(axes),
            runs=runs,
            epochs=_epochs(connection, newest),
            measurements=_measurements(connection, newest),
            given=_given(definition[0]) if study.get("networks") else None,
        )
        counts = population.counts
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise Unreadable(
            "The study's store is damaged: its definition or the settings of a run cannot be read "
            f"({error!r}). Run the study again in another folder."
        ) from error
    names = population.measures
    chosen = measure if measure in names else next(iter(names), "")
    rows = {row["run"]: row for row in population.rows}
    networks = {id_: {"network": r["network"]} for id_, r in rows.items() if "network" in r}
    settings = {run["id"]: networks.get(run["id"], {}) | _axes_of(run) for run in runs}
    given = population.outcomes is not None
    target = default_target(population) if given else "gap"
    failed = [run for run in runs if run["status"] == "failed"]
    beats = [number(run["heartbeat"]) or 0.0 for run in runs if run["status"] == "running"]
    return {
        "name": name,
        "description": description,
        "axes": [{"name": axis, "values": values} for axis, values in axes.items()],
        "counts": {
            name: getattr(counts, name) for name in ("pending", "running", "done", "failed")
        },
        "total": counts.total,
        "seconds_left": seconds_left([_timed(run) for run in runs]),
        "last_sign": max(beats, default=None),
        "recent": [
            _recent(
                run,
                settings[run["id"]],
                [rows[run["id"]]] if given else population.epochs.get(run["id"], ()),
            )
            for run in _newest_first(runs)
        ],
        "failures": [
            {"run": run["id"], "axes": settings[run["id"]]}
            | {"seed": run["seed"], "error": run["error"]}
            for run in sorted(failed, key=_ended, reverse=True)[:RECENT]
        ],
        "measures": names,
        "measure": chosen,
        "shown": len(newest),
        "given": given,
        "target": target,
        "points": _points(chosen, target, [rows[id_] for id_ in newest], settings),
        "curves": curves([population.epochs.get(id_, ()) for id_ in newest]),
    }


def _axes(study: Mapping[str, Any]) -> dict[str, list[Any]]:
    """What the study varies, as `Study.axes` has it: the variants, then the grid."""
    variants = study.get("variants") or {}
    networks = axes_of(study.get("networks") or [])
    return ({VARIANT: list(variants)} if variants else {}) | dict(study["grid"]) | networks


@functools.lru_cache(maxsize=1)
def _given(definition: str) -> dict[str, dict[str, Any]] | None:
    """What is known of given networks; kept, since the page asks every few seconds."""
    return Study.from_dict(json.loads(definition)).given()


def _axes_of(run: Row) -> Row:
    return dict(json.loads(run["axes"]))


def _select(connection: sqlite3.Connection, query: str, *values: object) -> list[Row]:
    selected = connection.execute(query, values)
    names = [column[0] for column in selected.description]
    return [dict(zip(names, row, strict=True)) for row in selected]


def _newest(runs: Sequence[Row]) -> list[str]:
    """Ids of the finished runs that are drawn, the newest last."""
    done = [run for run in runs if run["status"] == "done"]
    done.sort(key=lambda run: (number(run["finished"]) or 0.0, run["position"]))
    return [run["id"] for run in done[-NEWEST:]]


def _timed(run: Row) -> Row:
    """The run with times that can be computed with: a damaged number becomes None."""
    times = ("heartbeat", "started", "finished", "seconds")
    return run | {column: number(run[column]) for column in times}


def _ended(run: Row) -> float:
    return number(run["finished"]) or number(run["started"]) or 0.0


def _newest_first(runs: Sequence[Row]) -> list[Row]:
    """Runs that are being worked on, then those that ended last."""
    begun = [run for run in runs if run["status"] != "pending"]
    begun.sort(key=lambda run: (run["status"] != "running", -_ended(run), run["position"]))
    return begun[:RECENT]


def _recent(run: Row, axes: Row, epochs: Sequence[Row]) -> Row:
    """A row of the table; of a given network, `epochs` is what is known of it."""
    last = epochs[-1] if epochs else {}
    return {
        "run": run["id"],
        "axes": axes,
        "seed": run["seed"],
        "status": run["status"],
        "outcome": run["outcome"],
        "started": number(run["started"]),
        "seconds": number(run["seconds"]),
        "epochs": last.get("epoch"),
        **{column: number(last.get(column)) for column in LAST_EPOCH},
    }


def _epochs(connection: sqlite3.Connection, ids: Sequence[str]) -> Iterator[Row]:
    for id_ in ids:
        for row in _rows(connection, "epochs", id_, EPOCH_COLUMNS):
            yield row | {column: _float(row[column]) for column in LAST_EPOCH}


def _measurements(connection: sqlite3.Connection, ids: Sequence[str]) -> Iterator[Row]:
    for id_ in ids:
        for row in _rows(connection, "measurements", id_, MEASUREMENT_COLUMNS):
            if row["layer"] == "":
                yield row | {"measure": str(row["measure"]), "value": _float(row["value"])}


def _rows(
    connection: sqlite3.Connection, table: str, run: str, columns: Sequence[str]
) -> Iterator[Row]:
    """The rows of a run, compared with their checksum where the store carries one."""
    if has_checksums(connection):
        names = ("run", *schema.COLUMNS[table])
        for values in rows_of_run(connection, table, run):
            row = dict(zip(names, values, strict=True))
            yield {name: row[name] for name in columns}
        return
    order = ", ".join(schema.KEYS[table])
    query = f"SELECT {', '.join(columns)} FROM {table} WHERE run = ? ORDER BY {order}"
    yield from _select(connection, query, run)


def _float(value: object) -> float:
    """A number of the store; a damaged one is not a number."""
    read = loaded(value)
    return float(read) if isinstance(read, int | float) else math.nan


def _points(
    measure: str, target: str, rows: Sequence[Row], settings: Mapping[str, Row]
) -> list[Row]:
    """The measure against the target; runs that lack one of them, or a number there, are out."""
    points = []
    for row in rows:
        value, outcome = number(row.get(measure)), number(row.get(target))
        if value is not None and outcome is not None:
            # Not from the row, where a measure may have the name of a setting.
            axes = settings[row["run"]]
            points.append({"x": value, "y": outcome, "axes": axes, "seed": row["seed"]})
    return points


def curves(runs: Sequence[Sequence[Row]]) -> Row:
    """By column and epoch: median and quartiles over the runs that got so far, and their number.

    >>> rows = [[{"epoch": 1, "train_loss": v}] for v in (1.0, 2.0, 3.0, 4.0, 5.0)]
    >>> curves(rows)["train_loss"]
    {'epoch': [1], 'low': [2.0], 'median': [3.0], 'high': [4.0], 'n': [5]}
    """
    bands: Row = {}
    for column in LAST_EPOCH:
        by_epoch: dict[int, list[float]] = {}
        for rows in runs:
            for row in rows:
                if (value := number(row.get(column))) is not None:
                    by_epoch.setdefault(row["epoch"], []).append(value)
        band: Row = {"epoch": [], "low": [], "median": [], "high": [], "n": []}
        for epoch in sorted(by_epoch):
            values = by_epoch[epoch]
            cuts = statistics.quantiles(values, n=4, method="inclusive") if values[1:] else values
            low, high = cuts[0], cuts[-1]
            each = (epoch, low, statistics.median(values), high, len(values))
            for name, value in zip(band, each, strict=True):
                band[name].append(value)
        bands[column] = band
    return bands
