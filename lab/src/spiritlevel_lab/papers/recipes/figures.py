"""Figures of analyses: a mark for every run, plainly, by logarithms or as a density, or lines."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from spiritlevel.math.kde import GaussianMixture, scott
from spiritlevel.records.content import Figure, Panels, Series

from ...claims.contrasts import group_points, line
from ...claims.experiment import Row
from ...claims.numbers import mean
from ...claims.rows import column
from .runs import GroupedRuns, Spec, drawn

Numbers = Mapping[str, Mapping[Any, Any]]  # of every group, by name
PLACES, MARGIN = 80, 0.6  # of a density: points, and decades beyond the outermost networks
FEWEST = 4  # networks that have a density


def figure(spec: Spec, runs: GroupedRuns, numbers: Numbers) -> Figure | Panels | None:
    """The figure of the section `figure`; None for panels without a group.

    Marks have the columns `x` and `y`, with `x_label` and `y_label`; the axis of x is logarithmic
    where all are positive, unless it is `linear`. Lines have `lines`, numbers of every group or
    columns, whose means are taken. They are drawn along the values of the groups, divided by the
    `unit`: that of the `first` group or the `mean` over all of them. Where groups are divided, each
    has a line of its own; their `title` may have the group and the column as fields. The axis of y
    may be `log`. With `panels` every group has these: marks with a line through them, each with a
    `title`, and perhaps the axes that are `log`, `contours` of a density in place of the marks, or
    the `density` of x alone; marks may have the names of a column's values as `colours`.
    """
    if "panels" in spec:
        groups = runs.groups.items()
        panels = [_panel(spec, each, *group) for group in groups for each in spec["panels"]]
        return Panels(panels, columns=len(spec["panels"])) if panels else None
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


def _panel(spec: Spec, panel: Spec, group: str, rows: Sequence[Row]) -> Figure:
    x, y, title = spec["x"], spec["y"], panel["title"].format(group=group)
    if "density" in panel:
        return density(rows, x, spec["x_label"], title)
    groups = {group: rows}
    for name, values in spec.get("colours", {}).items():
        groups = {word: [r for r in rows if r[name] == value] for value, word in values.items()}
    log, contours = panel.get("log", ""), panel.get("contours", False)
    return marks(groups, x, y, spec["x_label"], spec["y_label"], title, log=log, contours=contours)


def marks(
    groups: Mapping[str, Sequence[Row]],
    x: str,
    y: str,
    x_label: str,
    y_label: str,
    title: str,
    *,
    log: str = "",
    contours: bool = False,
) -> Figure:
    """One mark a network and a line through each group; or contours in place of the marks."""
    series = []
    for name, rows in groups.items():
        there = [row for row in drawn(rows, x, y) if log != "y" or row[y] > 0]
        series.append(Series(name, column(there, x), column(there, y)))
    return Figure(
        *(x_label, y_label, series),
        log_x=log == "x",
        log_y=log == "y",
        points=True,
        fitted=not contours and log != "y",
        density=contours,
        title=title,
    )


def density(rows: Sequence[Row], x: str, x_label: str, title: str) -> Figure:
    """How many networks have which number: a kernel density over its logarithm, per decade."""
    values = [math.log10(row[x]) for row in rows]
    series = [Series("networks", *density_line(values))]
    return Figure(x_label, "density, per decade", series, log_x=True, title=title)


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


def density_line(values: Sequence[float]) -> tuple[list[float], list[float]]:
    """A Gaussian kernel density with Scott's bandwidth, of logarithms to base 10.

    Gives places as numbers, not logarithms, and the density there; empty for few values or equal
    ones.
    """
    if len(values) < FEWEST or min(values) == max(values):
        return [], []
    points = torch.tensor(values, dtype=torch.float64)[:, None]
    ends = min(values) - MARGIN, max(values) + MARGIN
    places = torch.linspace(*ends, PLACES, dtype=torch.float64)
    heights = GaussianMixture(points, scott(points)).log_density(places[:, None]).exp()
    return (10**places).tolist(), heights.tolist()
