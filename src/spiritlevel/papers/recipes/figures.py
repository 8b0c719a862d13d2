"""Figures of analyses: a mark for every run, or lines along the groups."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from ...content import Figure, Series
from ..judging.contrasts import group_points, line
from ..judging.numbers import mean
from ..judging.rows import column
from .runs import GroupedRuns, Spec

Numbers = Mapping[str, Mapping[Any, Any]]  # of every group, by name


def figure(spec: Spec, runs: GroupedRuns, numbers: Numbers) -> Figure:
    """The figure of the section `figure`.

    Marks have the columns `x` and `y`, with `x_label` and `y_label`; the axis of x is logarithmic
    where all are positive, unless it is `linear`. Lines have `lines`, numbers of every group or
    columns, whose means are taken. They are drawn along the values of the groups, divided by the
    `unit`: that of the `first` group or the `mean` over all of them. Where groups are divided, each
    has a line of its own; their `title` may have the group and the column as fields. The axis of y
    may be `log`.
    """
    if "lines" not in spec:
        marks = group_points(runs.groups, *(spec[key] for key in ("x", "y", "x_label", "y_label")))
        return dataclasses.replace(marks, log_x=marks.log_x and not spec.get("linear", False))
    title = spec.get("title", "{column}")

    def estimated(name: str, group: Any) -> Any:
        """A number of the group, or else the mean of a column."""
        return numbers[name][group] if name in numbers else mean(column(runs.named(group), name))

    lines = [
        _line(
            [runs.names(group)[-1] for group in along],
            [estimated(name, group) for group in along],
            title.format(group=outer, column=name),
            spec,
        )
        for outer, along in _along(runs).items()
        for name in spec["lines"]
    ]
    draw = log_figure if spec.get("log") else Figure
    return draw(spec["x_label"], spec["y_label"], lines)


def _along(runs: GroupedRuns) -> Mapping[Any, Sequence[Any]]:
    """The groups along a line, by the group whose parts they are, if there is one."""
    if not runs.outer:
        return {"": list(runs.groups)}
    return {outer: [name for name in runs.groups if name[0] == outer] for outer in runs.outer}


def _line(places: Sequence[float], estimates: Sequence[Any], title: str, spec: Spec) -> Series:
    values = [each.value for each in estimates]
    units = {"first": values[0], "mean": sum(values) / len(values)} if values else {}
    return line(title, places, estimates, units.get(spec.get("unit", ""), 1.0))


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
