"""A slice of the loss as a record that can be printed, drawn and saved."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from ...ground.errors import SpiritlevelError
from ...records.content import (
    ERROR,
    VALUE,
    Cell,
    Chart,
    Column,
    Figure,
    Notes,
    Part,
    Series,
    Table,
    Text,
    Uncertain,
    number,
)
from ...records.measurements import Cost, Report
from ...records.notebooks import Shown
from ...records.reading import IF_ANY, Misread, Saved, read_settings


@dataclasses.dataclass(frozen=True)
class Axis:
    """One direction in the space of weights, and where along it the loss was taken.

    At coordinate t the weights have moved by t times the direction, whose length is `length`.
    Along an eigenvector `eigenvalue` is known to within `residual`, and `slope` is the derivative
    of the loss at 0.
    """

    name: str
    coordinates: tuple[float, ...]
    length: float
    eigenvalue: float | None = None
    residual: float | None = None
    slope: float | None = None


@dataclasses.dataclass(frozen=True)
class Mark:
    """A network that lies on the slice."""

    name: str
    at: tuple[float, ...]


@dataclasses.dataclass(frozen=True, repr=False)
class Landscape(Shown, Saved):
    """The mean loss at each point of a line or a plane through a network's weights.

    `losses` are in row-major order: `grid()` gives rows. A loss that overflowed stays infinite
    or NaN. `errors` are the shares of missed targets
    where the loss is a cross-entropy, else None. `reports` are what was measured at each point of a
    line, if that was asked for.
    """

    CALLED: ClassVar = "the landscape"
    HEADING: ClassVar = "The loss along directions of the weights"
    FORMAT: ClassVar = "spiritlevel-landscape-1"

    directions: str  # "random", "eigen" or "path"
    axes: tuple[Axis, ...]
    losses: tuple[float, ...]
    errors: tuple[float, ...] | None
    marks: tuple[Mark, ...]
    notes: tuple[str, ...]  # what a reader must know
    settings: Mapping[str, Any]
    cost: Cost
    reports: tuple[Report, ...] = dataclasses.field(default=(), metadata=IF_ANY)

    @property
    def text(self) -> str:
        """The notes, joined into one paragraph."""
        return " ".join(self.notes)

    @property
    def num_samples(self) -> int:
        """The number of samples that every loss is averaged over."""
        return int(self.settings["num_samples"])

    def grid(self, values: Sequence[float] | None = None) -> list[list[float]]:
        """Losses, or other values of the same points, in rows: one for each point of axis 0."""
        values = self.losses if values is None else values
        width = len(self.axes[1].coordinates) if len(self.axes) == 2 else 1
        return [list(values[i : i + width]) for i in range(0, len(values), width)]

    def at(self, *coordinates: float) -> float:
        """The loss at a point of the grid."""
        index = 0
        for axis, t in zip(self.axes, coordinates, strict=True):
            index = index * len(axis.coordinates) + axis.coordinates.index(t)
        return self.losses[index]

    def values(self, measure: str) -> list[float]:
        """A measure at each point of a line."""
        if not self.reports:
            raise SpiritlevelError(
                f"Nothing was measured along this slice, so there is no {measure!r}. Ask for it: "
                f"spiritlevel.landscape(..., measures={measure!r})."
            )
        return [report[measure].value for report in self.reports]

    def parabola(self) -> list[float] | None:
        """L(0) + g·t + λ·t²/2 along an eigenvector; None for other slices."""
        if len(self.axes) != 1 or self.axes[0].eigenvalue is None or self.axes[0].slope is None:
            return None
        axis, start = self.axes[0], self.at(0.0)
        bend, slope = self.axes[0].eigenvalue, self.axes[0].slope
        return [start + slope * t + bend * t * t / 2 for t in axis.coordinates]

    @property
    def barrier(self) -> float | None:
        """How far the loss between two checkpoints rises above the line through their losses.

        The largest difference at the points of the grid from 0 to 1; None for other slices.
        """
        if self.directions != "path" or len(self.axes) != 1:
            return None
        start, end = self.at(0.0), self.at(1.0)
        pairs = zip(self.axes[0].coordinates, self.losses, strict=True)
        rises = [loss - ((1 - t) * start + t * end) for t, loss in pairs if 0 <= t <= 1]
        return math.nan if any(math.isnan(rise) for rise in rises) else max(rises)

    def describe(self) -> list[Part]:
        """What was found on the slice, the slice itself, where it runs, and what was counted."""
        lines = [
            f"{axis.name}: {number(axis.coordinates[0])} to {number(axis.coordinates[-1])}, "
            f"{len(axis.coordinates)} points, 1 unit = {number(axis.length)} in weight norm"
            for axis in self.axes
        ]
        lines += [f"loss {number(self.at(*m.at))} at {m.name}" for m in self.marks]
        for name in self.reports[0] if self.reports else ():
            values = self.values(name)
            low, high, start, end = map(number, (min(values), max(values), values[0], values[-1]))
            ends = f"{start} at one end, {end} at the other"
            lines.append(f"{name} from {low} to {high} on the slice, {ends}")
        for axis in self.axes:
            if axis.eigenvalue is not None and axis.residual is not None:
                value = number(Uncertain(axis.eigenvalue, axis.residual), VALUE)
                residual = number(axis.residual, ERROR)
                lines.append(f"{axis.name}: eigenvalue {value}, residual {residual}")
        notes = Notes(self.cost.passes(self.num_samples), self.num_samples)
        return [Text([self._answer()]), self._picture(), Text([*lines, self.text]), notes]

    def _answer(self) -> str:
        finite = [loss for loss in self.losses if math.isfinite(loss)]
        if not finite:
            return "The loss is finite nowhere on the slice."
        low, high = map(number, (min(finite), max(finite)))
        barrier = ""
        if self.barrier is not None:
            barrier = f"; barrier {number(self.barrier)} above the line between the checkpoints"
        return f"The loss is from {low} to {high} on the slice{barrier}."

    def _picture(self) -> Part:
        """The line, with its parabola where there is one; or a map of the plane."""
        across = self.axes[0]
        if len(self.axes) == 1:
            series = [Series("loss", across.coordinates, self.losses)]
            if (parabola := self.parabola()) is not None:
                series.append(
                    Series("parabola of the measured curvature", across.coordinates, parabola)
                )
            title = "The loss along the line"
            return Figure(across.name, "mean loss", series, id="slice", title=title)
        upwards, rows = self.axes[1], self.grid()
        data = {
            "x": across.coordinates,
            "y": upwards.coordinates,
            "titles": [across.name, upwards.name, "mean loss"],
            "z": list(zip(*rows, strict=True)),
            "marks": [[mark.name, *mark.at] for mark in self.marks],
        }
        cells: list[list[Cell]] = [
            [x, y, loss]
            for x, row in zip(across.coordinates, rows, strict=True)
            for y, loss in zip(upwards.coordinates, row, strict=True)
        ]
        columns = [*map(Column, (across.name, upwards.name)), Column("mean loss", digits=VALUE)]
        table = Table(columns, cells, id="slice-values", title="The points")
        return Chart("slice", "The loss on the plane", "map", data, table)

    def check_parts(self) -> None:
        """Refuse parts that do not go together: the file was edited, or damaged."""
        read_settings(self.settings, "the landscape's settings")
        sizes = [len(axis.coordinates) for axis in self.axes]
        points = math.prod(sizes)
        finite = all(math.isfinite(t) for axis in self.axes for t in axis.coordinates)
        if len(sizes) not in (1, 2) or not points or not finite:
            raise Misread(f"the landscape has axes of {sizes} points, or one is not finite")
        for name in ("losses", "errors"):
            values = getattr(self, name)
            if values is not None and len(values) != points:
                raise Misread(f"the landscape has {len(values)} {name} for {points} points")
        if self.reports and (len(self.reports) != points or len(sizes) != 1):
            raise Misread(f"the landscape has {len(self.reports)} reports for {points} points")
        for mark in self.marks:
            places = zip(self.axes, mark.at, strict=False)
            if len(mark.at) != len(sizes) or not all(t in axis.coordinates for axis, t in places):
                raise Misread(f"the landscape's mark {mark.name!r} is not on the grid")
