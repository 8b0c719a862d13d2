"""The runs of an experiment in the groups that its recipe names."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from ..judging.experiment import Row
from ..judging.rows import column, grouped

Spec = Mapping[str, Any]  # a part of a recipe, as the file has it


@dataclasses.dataclass(frozen=True)
class GroupedRuns:
    """All runs, and those of each group by its name, in order."""

    rows: Sequence[Row]
    groups: Mapping[Any, Sequence[Row]]

    @classmethod
    def of(cls, rows: Sequence[Row], spec: Spec) -> GroupedRuns:
        """As the section `groups` says.

        It has `by`, a column, and perhaps `names`, a list of its values or names by value, without
        which each value is a group; `all: true` keeps groups without a run. Or it has `stages`,
        names by stage: each run then has a row in every group, with its NAME/STAGE as NAME.
        """
        if "stages" in spec:
            stages = spec["stages"].items()
            return cls(rows, {name: _of_stage(rows, stage) for stage, name in stages})
        if "names" not in spec:
            return cls(rows, grouped(rows, spec["by"]))
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
        return self.groups.get(group, [])


def _of_stage(rows: Sequence[Row], stage: str) -> list[Row]:
    """The numbers of one stage. A run is compared with itself, so it takes the place of a seed."""
    ending = f"/{stage}"
    return [
        {key.removesuffix(ending): value for key, value in row.items() if key.endswith(ending)}
        | {"seed": place}
        for place, row in enumerate(rows)
    ]


def with_derived(rows: Sequence[Row], spec: Spec) -> list[Row]:
    """Runs with further columns, each `values` by what another column, `from`, has."""
    derived = {
        name: [new["values"].get(value) for value in column(rows, new["from"])]
        for name, new in spec.items()
    }
    return [
        {**row, **{name: values[place] for name, values in derived.items()}}
        for place, row in enumerate(rows)
    ]


def among(rows: Sequence[Row], wanted: Mapping[str, Sequence[Any]]) -> list[Row]:
    """Runs with one of the wanted values in each of the columns."""
    return [row for row in rows if all(row[key] in values for key, values in wanted.items())]
