"""The finished runs of a study as columns of numbers, and which of them a picture can show."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import SpiritlevelError, suggestion
from ...study.statistics import Correlation, spearman
from ...study.storage.store import Store
from ...study.table import TARGETS, wide_rows

Row = Mapping[str, Any]
QUARTILES = (0.25, 0.5, 0.75)
EPOCH_WORDS = {
    "train_loss": "training loss",
    "test_loss": "test loss",
    "train_accuracy": "training accuracy",
    "test_accuracy": "test accuracy",
}


@dataclasses.dataclass(frozen=True)
class Population:
    """What the pictures of a study are drawn from.

    Args:
        rows: one mapping a finished run, as `study.table.wide_rows` gives them.
        axes: names of the settings that the study varies.
        measures: names of the measures of the whole network.
        epochs: of every run by its id, in order.
        layers: by measure, then run, then layer.
        unfinished: runs that failed, wait or are under way.
    """

    rows: Sequence[Row]
    axes: Sequence[str]
    measures: Sequence[str]
    epochs: Mapping[str, Sequence[Row]] = dataclasses.field(default_factory=dict)
    layers: Mapping[str, Mapping[str, Mapping[str, float]]] = dataclasses.field(
        default_factory=dict
    )
    unfinished: int = 0

    @classmethod
    def of(cls, study: Store | Population) -> Population:
        """Read a store once; a population is returned as it is."""
        return study if isinstance(study, Population) else _read(study)

    def check(self, argument: str, name: str, known: Sequence[str]) -> None:
        """Refuse a name that is not among those known."""
        if name not in known:
            raise SpiritlevelError(
                f"The {argument!r} must be one of {', '.join(known) or 'none here'}. Got {name!r}."
                f"{suggestion(name, known)}"
            )

    def column(self, name: str) -> list[float]:
        """A measure, a target or a number of the last epoch, one a run; nan where it is missing."""
        self.check("column", name, [*self.measures, *TARGETS, *EPOCH_WORDS])
        values = (row.get(name) for row in self.rows)
        return [math.nan if value is None else float(value) for value in values]

    def groups(self, by: str) -> dict[str, list[int]]:
        """Positions of the runs by the value of a setting: numbers in order, names as they come."""
        self.check("by", by, [*self.axes, "seed"])
        found: dict[Any, list[int]] = {}
        for i, row in enumerate(self.rows):
            found.setdefault(row[by], []).append(i)
        if all(isinstance(v, int | float) and not isinstance(v, bool) for v in found):
            found = {value: found[value] for value in sorted(found)}
        named: dict[str, list[int]] = {}
        for value, members in found.items():
            named.setdefault(_value_name(value), []).extend(members)
        return named


def _value_name(value: Any) -> str:
    """Short, but never the same for two numbers: 0.1 and not 0.10000000000000001."""
    short = f"{value:g}" if isinstance(value, float) else str(value)
    return short if not isinstance(value, float) or float(short) == value else repr(value)


def _read(store: Store) -> Population:
    every = wide_rows(store)
    rows = [row for row in every if row["status"] == "done"]
    if not rows:
        raise SpiritlevelError(
            f"The study in {str(store.folder)!r} has no finished run yet: there is nothing to "
            f"draw. See `spiritlevel study status {store.folder}`."
        )
    epochs: dict[str, list[Row]] = {}
    for row in store.rows("epochs"):
        epochs.setdefault(row["run"], []).append(row)
    measures: dict[str, None] = {}
    layers: dict[str, dict[str, dict[str, float]]] = {}
    for row in store.rows("measurements"):
        if row["layer"] == "":
            measures[row["measure"]] = None
        else:
            of_run = layers.setdefault(row["measure"], {}).setdefault(row["run"], {})
            of_run[row["layer"]] = row["value"]
    return Population(
        rows=rows,
        axes=list(store.study.grid),
        measures=list(measures),
        epochs=epochs,
        layers=layers,
        unfinished=len(every) - len(rows),
    )


def words(name: str) -> str:
    """A column with its definition, for an axis."""
    if name in TARGETS and name != TARGETS[name].replace(" ", "_"):
        return f"{name.replace('_', ' ')}: {TARGETS[name]}"
    return EPOCH_WORDS.get(name, name)


@dataclasses.dataclass(frozen=True)
class Pairs:
    """Points that can be drawn, and how many cannot."""

    x: list[float]
    y: list[float]
    kept: list[int]  # positions of the runs
    missing: int  # runs without two finite numbers
    not_positive: int  # runs that have no place on a log axis

    @property
    def text(self) -> str:
        """How many runs are seen, and why others are not."""
        parts = [f"n = {len(self.kept)}"]
        if self.missing:
            parts.append(f"{self.missing} without finite numbers")
        if self.not_positive:
            parts.append(f"{self.not_positive} not positive left out")
        return ", ".join(parts)


def num_runs(number: int) -> str:
    """A number of runs, in words."""
    return "1 run" if number == 1 else f"{number} runs"


def pairs(x: Sequence[float], y: Sequence[float], *, log: str = "") -> Pairs:
    """The finite points; on the axes named in `log` ("x", "y", "xy") the positive ones."""
    finite = [i for i, point in enumerate(zip(x, y, strict=True)) if all(map(math.isfinite, point))]
    kept = [i for i in finite if ("x" not in log or x[i] > 0) and ("y" not in log or y[i] > 0)]
    return Pairs(
        [x[i] for i in kept],
        [y[i] for i in kept],
        kept,
        missing=len(x) - len(finite),
        not_positive=len(finite) - len(kept),
    )


def rank_correlation(x: Sequence[float], y: Sequence[float]) -> str:
    """Spearman's ρ with its interval, of all finite points, also those an axis leaves out."""
    found: Correlation = spearman(x, y)
    if math.isnan(found.value):
        return f"ρ undefined: {found.reason}"
    return f"Spearman ρ {found}"


def natural(name: str) -> list[tuple[int, int, str]]:
    """A key that sorts layer2 before layer10."""
    parts = re.findall(r"\d+|\D+", name)
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts]


def spans_decades(values: Sequence[float]) -> bool:
    """Whether a log axis is possible and of use."""
    return bool(values) and min(values) > 0 and max(values) > 10 * min(values)
