"""The figure of a recipe: a mark for every run, or lines along the groups."""

from __future__ import annotations

import dataclasses

from ...pages.content import Figure, Series
from ..judging.contrasts import group_points, line
from ..judging.numbers import mean
from ..judging.rows import column
from .runs import GroupedRuns, Spec


def figure(spec: Spec, runs: GroupedRuns) -> Figure:
    """As the section `figure` says.

    Marks have the columns `x` and `y`, with `x_label` and `y_label`; the axis of x is logarithmic
    where all are positive, unless it is `linear`. Lines have `lines`, columns
    whose means are drawn along the values of the groups, divided by the `unit`: that of the `first`
    group or the `mean` over all of them.
    """
    if "lines" not in spec:
        marks = group_points(runs.groups, *(spec[key] for key in ("x", "y", "x_label", "y_label")))
        return dataclasses.replace(marks, log_x=marks.log_x and not spec.get("linear", False))
    lines = [_line(name, spec.get("unit", ""), runs) for name in spec["lines"]]
    return Figure(spec["x_label"], spec["y_label"], lines)


def _line(name: str, unit: str, runs: GroupedRuns) -> Series:
    means = [mean(column(group, name)) for group in runs.groups.values()]
    units = {
        "first": next((each.value for each in means), 1.0),
        "mean": sum(each.value for each in means) / max(len(means), 1),
    }
    return line(name, list(runs.groups), means, units.get(unit, 1.0))
