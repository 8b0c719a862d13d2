"""The loss along a line, or as a map of a plane."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...verbs.landscape import Axis, Landscape
from .style import COLOURS, COLUMN, GREY, PRINT_FONT, new_axes, shown, tidy, title

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DECADES_FROM = 20.0  # largest over smallest loss at which contours go by decades
MOST_LEVELS = 11  # contours that can be told apart in a column
LABELLED_FROM = 0.4  # of the map's side
LONGEST_MARK = 20  # characters: two of them stand side by side over a column
PALE = "#EDEDED"
ROUND = [1, 2, 2.5, 5, 10]
STEPS = ((1.0, 2.0, 5.0), (1.0, 3.0), (1.0,))  # within a decade, finest first


def landscape(surface: Landscape, *, ax: Axes | None = None) -> Axes:
    """A line with the error rate beside it, or a contour map; gaps where the loss is not finite.

    Along an eigenvector the parabola of the measured curvature lies over the line.
    """
    if len(surface.axes) == 2:
        return _map(surface, new_axes(ax, COLUMN, 0.86 * COLUMN))
    return _profile(surface, new_axes(ax, COLUMN, 0.7 * COLUMN))


def _profile(surface: Landscape, ax: Axes) -> Axes:
    grid, losses = surface.axes[0].coordinates, _finite(surface.losses)
    lines = ax.plot(grid, losses, color=COLOURS[0], linewidth=1.4, label="loss", zorder=3)
    low, high = _bounds(losses)
    room = 0.06 * (high - low or 1.0)
    ax.set_ylim(low - room, high + 2.5 * room)
    parabola = surface.parabola()
    if parabola is not None:
        lines += ax.plot(
            grid, parabola, ":", color=COLOURS[6], linewidth=1.2, label="parabola", zorder=4
        )
    if surface.errors is not None:
        lines += _error_rate(surface, ax)
    _mark_line(surface, ax)
    ax.set_xlabel(_axis_text(surface, 0))
    ax.set_ylabel("mean loss")
    tidy(ax, font=PRINT_FONT)
    ax.legend(
        handles=lines,
        fontsize=PRINT_FONT - 1,
        frameon=False,
        ncols=len(lines),
        loc="lower center",
        bbox_to_anchor=(0.5, 1.0 if len(surface.marks) == 1 else 1.06),
        handlelength=2.2,
        columnspacing=1.2,
        borderaxespad=0.2,
    )
    return ax


def _error_rate(surface: Landscape, ax: Axes) -> list[Any]:
    """The error rate, on its own scale at the right."""
    beside = ax.twinx()
    ax.set_zorder(beside.get_zorder() + 1)  # the loss lies over it
    ax.patch.set_visible(False)
    percent = [100 * error for error in _finite(surface.errors or ())]
    lines = beside.plot(
        surface.axes[0].coordinates,
        percent,
        "--",
        color=COLOURS[1],
        linewidth=1.1,
        label="error rate",
    )
    beside.set_ylim(-3, 103)  # a line at 0 is seen whole
    beside.set_ylabel("error rate (%)", fontsize=PRINT_FONT)
    beside.tick_params(labelsize=PRINT_FONT - 1)
    beside.spines["top"].set_visible(False)
    return lines


def _mark_line(surface: Landscape, ax: Axes) -> None:
    for mark in surface.marks:
        (t,) = mark.at
        ax.axvline(t, color=GREY, linewidth=0.6, linestyle=(0, (2, 2)), zorder=1)
        ax.plot([t], [surface.at(t)], "o", color=COLOURS[0], markersize=3.5, zorder=5)
        if len(surface.marks) > 1:
            ax.annotate(
                shown(_short(mark.name)),
                (t, 1.0),
                xycoords=ax.get_xaxis_transform(),
                xytext=(0, 2),
                textcoords="offset points",
                ha="center",
                va="bottom",
                fontsize=PRINT_FONT - 1,
                color=GREY,
            )


def _map(surface: Landscape, ax: Axes) -> Axes:
    import numpy
    from matplotlib.colors import BoundaryNorm
    from matplotlib.ticker import MaxNLocator

    across, upwards = surface.axes
    heights = numpy.ma.masked_invalid(numpy.array(surface.grid(_finite(surface.losses))).T)
    levels = contour_levels(*_bounds(surface.losses))
    ax.set_facecolor(PALE)
    grid = across.coordinates, upwards.coordinates, heights
    norm = BoundaryNorm(levels, 256)
    filled = ax.contourf(*grid, levels=levels, cmap="cividis", norm=norm)
    lines = ax.contour(*grid, levels=levels, colors="white", linewidths=0.5)
    wide = _wide_levels(lines, across, upwards)
    if wide:
        written = ax.clabel(lines, wide, fontsize=PRINT_FONT - 2, fmt=lambda level: f"{level:g}")
        _outline(written)
    for mark in surface.marks:
        ax.plot(*mark.at, "*", color="white", markeredgecolor="black", markersize=7, zorder=5)
    if len(surface.marks) > 1:
        _name_marks(surface, ax)
    ax.set_xlabel(_axis_text(surface, 0))
    ax.set_ylabel(_axis_text(surface, 1))
    for line in (ax.xaxis, ax.yaxis):
        line.set_major_locator(MaxNLocator(5, steps=ROUND))
        line.get_offset_text().set_fontsize(PRINT_FONT - 1)
    tidy(ax, font=PRINT_FONT)
    ax.grid(False)
    bar = ax.figure.colorbar(filled, ax=ax, pad=0.02, ticks=levels)
    bar.ax.set_yticklabels([f"{level:g}" for level in levels])
    bar.set_label("mean loss", fontsize=PRINT_FONT)
    bar.ax.tick_params(labelsize=PRINT_FONT - 1)
    gaps = sum(not math.isfinite(loss) for loss in surface.losses)
    if gaps:
        title(ax, "grey: not finite")
    return ax


def _wide_levels(lines: Any, across: Axis, upwards: Axis) -> list[float]:
    """Contours with room for their number; that of the others stands at the colour bar."""
    levels = []
    for level, path in zip(lines.levels, lines.get_paths(), strict=True):
        for piece in path.to_polygons(closed_only=False):
            width, height = piece.max(axis=0) - piece.min(axis=0)
            if max(width / _span(across), height / _span(upwards)) >= LABELLED_FROM:
                levels.append(float(level))
                break
    return levels


def _span(axis: Axis) -> float:
    return axis.coordinates[-1] - axis.coordinates[0]


def _short(name: str) -> str:
    return name if len(name) <= LONGEST_MARK else f"{name[: LONGEST_MARK - 1]}…"


def _name_marks(surface: Landscape, ax: Axes) -> None:
    """Write each mark's name beside its star, on the side where there is room."""
    notes = []
    for mark in surface.marks:
        x, y = mark.at
        left = x > 0.5
        note = ax.annotate(
            shown(_short(mark.name)),
            (x, y),
            xytext=(-5, -4) if left else (5, 4),
            textcoords="offset points",
            ha="right" if left else "left",
            va="top" if left else "bottom",
            fontsize=PRINT_FONT - 1,
            zorder=6,
        )
        note.set_in_layout(False)
        notes.append(note)
    _outline(notes)


def _outline(texts: Sequence[Any]) -> None:
    """Draw texts white with a dark edge, which can be read on every shade."""
    from matplotlib.patheffects import withStroke

    for text in texts:
        text.set_color("white")
        text.set_path_effects([withStroke(linewidth=1.4, foreground="black")])


def contour_levels(low: float, high: float) -> list[float]:
    """Round numbers that enclose a range: in equal steps, or by decades where it spans them.

    >>> contour_levels(0.3, 2.2)
    [0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.25]
    >>> contour_levels(0.012, 230.0)
    [0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0]
    """
    from matplotlib.ticker import MaxNLocator

    if low > 0 and high / low >= DECADES_FROM:
        first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
        for steps in STEPS:
            every = [float(f"{s:g}e{k}") for k in range(first, last + 1) for s in steps]
            below = max((level for level in every if level <= low), default=every[0])
            above = min((level for level in every if level >= high), default=every[-1])
            levels = [level for level in every if below <= level <= above]
            if len(levels) <= MOST_LEVELS:
                return levels
        stride = math.ceil(len(levels) / MOST_LEVELS)
        return sorted({*levels[::stride], levels[-1]})
    if high <= low:
        high = low + (abs(low) or 1.0)  # one height everywhere still is a map
    ticks = MaxNLocator(MOST_LEVELS - 2, steps=ROUND).tick_values(low, high)
    return [float(tick) for tick in ticks]


def _axis_text(surface: Landscape, index: int) -> str:
    axis = surface.axes[index]
    if surface.directions == "path":
        start, end = surface.marks[0].name, surface.marks[1 + index].name
        return f"{shown(_short(start))} → {shown(_short(end))}"
    curvature = "" if axis.eigenvalue is None else f", λ = {axis.eigenvalue:.3g}"
    return f"{shown(axis.name)} (length {axis.length:.3g}{curvature})"


def _finite(values: Sequence[float]) -> list[float]:
    """Values with NaN for what has no place on an axis: lines break there."""
    return [value if math.isfinite(value) else math.nan for value in values]


def _bounds(values: Sequence[float]) -> tuple[float, float]:
    finite = [value for value in values if math.isfinite(value)]
    return min(finite), max(finite)
