"""Figures of analyses: a mark for every run, or lines along the groups."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

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


def log_figure(x_label: str, y_label: str, lines: Sequence[Series]) -> Figure:
    """Lines on a logarithmic axis, which cannot show numbers at or below 0.

    Bars that reach 0 or below end at the smallest number drawn, and the label says so.
    """
    drawn = [
        value
        for each in lines
        for values in (each.y, each.low or ())
        for value in values
        if value > 0
    ]
    positive = [_above_zero(each) for each in lines]
    remarks = []
    if any(len(a.x) < len(b.x) for a, b in zip(positive, lines, strict=True)):
        remarks.append("points at or below 0 are left out")
    if any(low <= 0 for each in positive for low in each.low or ()):
        remarks.append("bars to 0 or below end at the smallest value drawn")
    label = f"{x_label} ({'; '.join(remarks)})" if remarks else x_label
    cut = [_cut(each, min(drawn)) for each in positive] if drawn else positive
    return Figure(label, y_label, cut, log_y=True)


def _above_zero(series: Series) -> Series:
    """The series without points at or below 0, or nan where no run got so far."""
    places = [i for i, y in enumerate(series.y) if y > 0]
    low, high = (
        None if ends is None else [ends[i] for i in places] for ends in (series.low, series.high)
    )
    x, y = ([values[i] for i in places] for values in (series.x, series.y))
    return dataclasses.replace(series, x=x, y=y, low=low, high=high)


def _cut(series: Series, smallest: float) -> Series:
    if series.low is None:
        return series
    return dataclasses.replace(series, low=[smallest if low <= 0 else low for low in series.low])
