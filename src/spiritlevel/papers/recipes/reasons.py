"""What stands between a measure and the gap: confounders that go with both, in sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..judging.population import CONFOUNDERS, FEW, GAP, why
from .runs import GroupedRuns, Spec
from .sentences import filled


def reasons(spec: Spec, runs: GroupedRuns, fields: Mapping[str, Any]) -> list[str]:
    """What the section `reasons` asks for; nothing for networks too few for a correlation.

    It has a `measure` and its `name` in sentences, and perhaps another column for the `gap`, a
    sentence that comes `first`, or `each: true`, for a text on every group.
    """
    measure, name, gap = spec["measure"], spec["name"], spec.get("gap", GAP)
    said = []
    for group, rows in runs.groups.items() if spec.get("each") else [(None, runs.rows)]:
        if len(rows) < FEW:
            continue
        if "first" in spec:
            said.append(filled(spec["first"], fields))
        if all(any(row.get(each) is not None for row in rows) for each in CONFOUNDERS):
            text = why([{**row, GAP: row[gap]} for row in rows], measure, name)
            said.append(text if group is None else f"{group}: {text}")
    return said
