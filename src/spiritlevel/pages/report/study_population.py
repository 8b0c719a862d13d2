"""A study's rows, read once, in the form that the sections of its page share."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from typing import Any

from ...study import table
from ...study.settings.definition import Study
from ...study.storage.store import Counts, Store
from .parts import Cell


@dataclasses.dataclass(frozen=True)
class Population:
    """The runs of a study; `rows` are those of `study.table.wide_rows`."""

    study: Study
    counts: Counts
    rows: list[dict[str, Any]]
    epochs: dict[str, list[dict[str, Any]]]  # by run, in order
    during: dict[str, dict[str, dict[int, float]]]  # measure, run, epoch: while it was trained
    layers: dict[str, dict[str, list[float]]]  # measure, layer: a finite value a run
    measures: list[str]
    axes: list[str]  # settings in which runs differ, the seed last
    machines: list[dict[str, Any]]

    @property
    def done(self) -> list[dict[str, Any]]:
        """Runs that were finished, diverged ones too."""
        return [row for row in self.rows if row["status"] == "done"]

    @property
    def ended(self) -> list[dict[str, Any]]:
        """Runs that the statistics count: finished or failed."""
        return [row for row in self.rows if row["status"] in ("done", "failed")]

    def groups(self, axis: str) -> dict[str, list[dict[str, Any]]]:
        """Finished runs by the value of a setting, numbers in ascending order."""
        found: dict[str, list[dict[str, Any]]] = {}
        for row in sorted(self.done, key=lambda row: _order(row[axis])):
            found.setdefault(label(row[axis]), []).append(row)
        return found


def read(store: Store) -> Population:
    """Everything the page needs from the store."""
    rows = table.wide_rows(store)
    epochs: dict[str, list[dict[str, Any]]] = {}
    for row in store.rows("epochs"):
        epochs.setdefault(row["run"], []).append(row)
    measures: dict[str, None] = {}
    layers: dict[str, dict[str, list[float]]] = {}
    for row in store.rows("measurements"):
        measures[row["measure"]] = None
        if row["layer"] and math.isfinite(row["value"]):
            layers.setdefault(row["measure"], {}).setdefault(row["layer"], []).append(row["value"])
    during: dict[str, dict[str, dict[int, float]]] = {}
    for row in store.rows("epoch_measurements"):
        if not row["layer"] and math.isfinite(row["value"]):
            runs = during.setdefault(row["measure"], {})
            runs.setdefault(row["run"], {})[row["epoch"]] = row["value"]
    study = store.study
    return Population(
        study=study,
        counts=store.counts(),
        rows=rows,
        epochs=epochs,
        during=during,
        layers=layers,
        measures=sorted(measures),
        axes=[axis for axis in (*study.axes, "seed") if _differs(rows, axis)],
        machines=list(store.machines().values()),
    )


def label(value: object) -> str:
    """A setting's value in short.

    >>> label(0.001), label(True), label("sgd"), label(None)
    ('0.001', 'true', 'sgd', 'null')
    """
    return value if isinstance(value, str) else json.dumps(value)


def setting(value: Any) -> Cell:
    """The same for a table, where a number sorts as one."""
    return value if isinstance(value, int | float) else label(value)


def number(value: Any) -> float | None:
    """Six digits of it, which pictures and tables do not outlive; None unless finite.

    >>> number(1.23456789), number(float("nan")), number(None)
    (1.23457, None, None)
    """
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.6g}")


def finite(rows: Sequence[dict[str, Any]], name: str) -> list[float]:
    """The column's numbers, without those that are missing or not finite."""
    values = (row.get(name) for row in rows)
    return [value for value in values if value is not None and math.isfinite(value)]


def quartiles(values: Sequence[float]) -> list[float | None]:
    """Smallest, quarter, median, three quarters, largest; linear between neighbours.

    >>> quartiles([1.0, 2.0, 3.0, 4.0])
    [1.0, 1.75, 2.5, 3.25, 4.0]
    """
    ordered = sorted(values)
    found = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        place = share * (len(ordered) - 1)
        below = math.floor(place)
        above = min(below + 1, len(ordered) - 1)
        found.append(number(ordered[below] + (place - below) * (ordered[above] - ordered[below])))
    return found


def _differs(rows: Sequence[dict[str, Any]], axis: str) -> bool:
    return len({json.dumps(row[axis]) for row in rows}) > 1


def _order(value: object) -> tuple[int, float, str]:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return 0, float(value), ""
    return 1, 0.0, label(value)
