"""The runs of an experiment in the groups that its recipe names."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from ...claims.experiment import Row
from ...claims.rows import column, grouped

Spec = Mapping[str, Any]  # a part of a recipe, as the file has it
STEP = "task.step"  # after how many batches a network was looked at


@dataclasses.dataclass(frozen=True)
class GroupedRuns:
    """All runs, and those of each group by its name, in order.

    Where groups are divided again, a name is a pair, and `outer` has the groups before that. Points
    of training are numbered; `steps` says after how many batches they lay.
    """

    rows: Sequence[Row]
    groups: Mapping[Any, Sequence[Row]]
    outer: Mapping[Any, Sequence[Row]] = dataclasses.field(default_factory=dict)
    steps: Mapping[Any, float] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, rows: Sequence[Row], spec: Spec) -> GroupedRuns:
        """The groups of the section `groups`.

        It has `by`, a column, and perhaps `names`, a list of its values or names by value, without
        which each value is a group; `all: true` keeps groups without a run. Or it has `stages`,
        names by stage, or a number of `points` along training: each run then has a row in every
        group, with its NAME/STAGE as NAME. `then` divides each group once more.
        """
        if "then" in spec:
            outer = cls.of(rows, {key: value for key, value in spec.items() if key != "then"})
            divided = {name: cls.of(group, spec["then"]) for name, group in outer.groups.items()}
            inner = {(a, b): own for a, part in divided.items() for b, own in part.groups.items()}
            steps = {(a, b): step for a, part in divided.items() for b, step in part.steps.items()}
            return cls(rows, inner, outer.groups, steps)
        if "points" in spec:
            points = range(1, spec["points"] + 1)
            parts = {point: _of_stage(rows, str(point)) for point in points}
            return cls(rows, parts, steps={point: _step(part) for point, part in parts.items()})
        if "stages" in spec:
            stages = spec["stages"].items()
            return cls(rows, {name: _of_stage(rows, stage) for stage, name in stages})
        if "names" not in spec:
            return cls(rows, grouped(rows, spec["by"]) if "by" in spec else {})
        names = spec["names"]
        if not isinstance(names, Mapping):
            names = dict(zip(names, names, strict=True))
        groups = {
            name: [row for row in rows if row[spec["by"]] == value] for value, name in names.items()
        }
        kept = {name: group for name, group in groups.items() if group or spec.get("all")}
        return cls(rows, kept)

    def named(self, group: Any) -> Sequence[Row]:
        """The runs of a group; none where it has none."""
        return self.groups.get(group) or self.outer.get(group, [])

    def names(self, group: Any) -> list[Any]:
        """What a group is called in a table: one name, or two where groups are divided."""
        names = list(group) if isinstance(group, tuple) else [group]
        return [*names[:-1], self.steps.get(group, names[-1])]


def _of_stage(rows: Sequence[Row], stage: str) -> list[Row]:
    """The numbers of one stage. A run is compared with itself, so it takes the place of a seed."""
    ending = f"/{stage}"
    return [
        {key.removesuffix(ending): value for key, value in row.items() if key.endswith(ending)}
        | {"seed": place}
        for place, row in enumerate(rows)
    ]


def _step(rows: Sequence[Row]) -> float:
    """The step of any run that came so far; nan where none did."""
    return next((step for step in column(rows, STEP) if step is not None), math.nan)


def with_derived(rows: Sequence[Row], spec: Spec) -> list[Row]:
    """Runs with further columns: `values` by what another one, `from`, has, or a `ratio` of two.

    A ratio may be `times` a number; it is None where one of both is missing or the divisor is 0.
    """
    return [{**row, **{name: _derived(row, new) for name, new in spec.items()}} for row in rows]


def _derived(row: Row, new: Spec) -> Any:
    if "from" in new:
        return new["values"].get(row.get(new["from"]))
    above, below = (row.get(name) for name in new["ratio"])
    return None if not below or above is None else above / below * new.get("times", 1.0)


def among(rows: Sequence[Row], wanted: Mapping[str, Sequence[Any]]) -> list[Row]:
    """Runs with one of the wanted values in each of the columns."""
    return [row for row in rows if all(row[key] in values for key, values in wanted.items())]


def drawn(rows: Sequence[Row], x: str, y: str) -> list[Row]:
    """Runs with a finite positive x and a finite y."""
    return [
        row
        for row in rows
        if all(row.get(name) is not None and math.isfinite(row[name]) for name in (x, y))
        and row[x] > 0
    ]
