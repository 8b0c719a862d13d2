"""Pictures of reports: measures against an outcome, layers side by side, moves that change nothing.

Every function draws into the axes it is given, or into a figure of its own, and returns the axes.
Colours are those of Okabe and Ito, which colour-blind readers tell apart; shapes differ as well.
"""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ._core import Report, SpiritlevelError, require
from .estimators.density import Density

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = (  # of networks
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#000000",
)
LINES = (  # of measures: colour, dashes, width; wide pale lines lie below narrow ones
    ("#000000", "-", 2.0),
    ("#AA3377", "--", 2.0),
    ("#CCBB44", "-", 6.0),
    ("#4477AA", "-.", 2.0),
)
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
GREY = "#666666"
FONT = 8.5
DPI = 150

Box = tuple[float, float, float, float]  # left, bottom, right, top, in pixels


def new_figure(width: float, height: float) -> Figure:
    """A figure in inches, without pyplot and so without windows and global state."""
    require("matplotlib", what="Drawing", extra="plots")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save(figure: Figure, kind: str) -> bytes:
    """The figure as "png" or "svg"; the same figure gives the same bytes."""
    import matplotlib

    buffer = io.BytesIO()
    metadata = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}}[kind]
    with matplotlib.rc_context({"svg.hashsalt": "spiritlevel"}):
        figure.savefig(buffer, format=kind, metadata=metadata)
    return buffer.getvalue()


def settle(figure: Figure) -> None:
    """Fix sizes and scales: names are placed among them, so nothing may move afterwards."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")


def style(index: int) -> dict[str, str]:
    """Colour and marker of the index-th network, the same in every panel."""
    return {"color": COLOURS[index % len(COLOURS)], "marker": MARKERS[index % len(MARKERS)]}


def against(
    reports: Mapping[str, Report],
    outcome: Mapping[str, float],
    measure: str,
    *,
    errors: Mapping[str, float] | None = None,
    path: Sequence[str] = (),
    ax: Axes | None = None,
) -> Axes:
    """One point a network: a measure across, an outcome such as the generalization gap upwards.

    `errors` are standard errors of the outcome; `path` names networks to join by arrows, as the
    moments of one training run.
    """
    ax = ax if ax is not None else new_figure(5, 4).add_subplot()
    for i, (name, report) in enumerate(reports.items()):
        x, y = _value(report, measure), outcome[name]
        if errors is not None:
            ax.errorbar(x, y, yerr=errors[name], color=GREY, linewidth=0.8, zorder=1)
        look = style(i)
        ax.plot(x, y, look["marker"], color=look["color"], markersize=7, label=name, zorder=2)
    for start, end in itertools.pairwise(path):
        ax.annotate(
            "",
            (_value(reports[end], measure), outcome[end]),
            (_value(reports[start], measure), outcome[start]),
            arrowprops={"arrowstyle": "->", "color": GREY, "shrinkA": 6, "shrinkB": 6},
            zorder=1,
        )
    _log_if_positive(ax, "x", [_value(report, measure) for report in reports.values()])
    lows = [y - (errors or {}).get(name, 0.0) for name, y in outcome.items()]
    _log_if_positive(ax, "y", lows)
    ax.set_xlabel(measure)
    _tidy(ax)
    ax.margins(x=0.3, y=0.12)  # room for names
    return ax


def layers(reports: Mapping[str, Report], measure: str, *, ax: Axes | None = None) -> Axes:
    """One line a network: a measure of each layer, in the model's order."""
    ax = ax if ax is not None else new_figure(5, 4).add_subplot()
    every: list[float] = []
    for i, (name, report) in enumerate(reports.items()):
        if measure not in report.layers:
            have = ", ".join(report.layers) or "none"
            raise SpiritlevelError(
                f"The report {name!r} has no layers of {measure!r}. Measures with layers: {have}."
            )
        values = [m.value for m in report.layers[measure].values()]
        every += values
        ax.plot(list(report.layers[measure]), values, label=name, linewidth=1.5, **style(i))  # type: ignore[arg-type]
    _log_if_positive(ax, "y", every)
    ax.set_ylabel(measure)
    ax.margins(x=0.08)
    _tidy(ax)
    return ax


def moves(
    factors: Sequence[float], curves: Mapping[str, Sequence[float]], *, ax: Axes | None = None
) -> Axes:
    """Measures along a family of networks that compute the same function, relative to factor 1."""
    ax = ax if ax is not None else new_figure(5, 4).add_subplot()
    start = min(range(len(factors)), key=lambda i: abs(math.log(factors[i])))
    for i, (name, values) in enumerate(curves.items()):
        relative = [value / values[start] for value in values]
        colour, dashes, width = LINES[i % len(LINES)]
        ax.plot(
            factors,
            relative,
            dashes,
            color=colour,
            linewidth=width,
            zorder=3 - width / 6,
            label=name,
        )
    _log_scale(ax, "x", decades=1)
    _log_scale(ax, "y", decades=3)
    _tidy(ax)
    return ax


def density(found: Density, eigenvalues: Sequence[float] = (), *, ax: Axes | None = None) -> Axes:
    """The density of eigenvalues on a log scale, with single eigenvalues as ticks below it."""
    if ax is None:
        ax = new_figure(6.0, 3.4).subplots()
    grid, height = (values.tolist() for values in found.curve(4000))
    floor = 0.1 / found.size / max(grid[1] - grid[0], 1e-300) / len(grid)  # below one eigenvalue
    shown = [max(h, floor) for h in height]
    ax.fill_between(grid, floor, shown, color=COLOURS[0], alpha=0.25, linewidth=0)
    ax.plot(grid, shown, color=COLOURS[0], linewidth=1.2)
    ax.set_yscale("log")
    ax.set_ylim(bottom=floor)
    if eigenvalues:
        ax.plot(
            list(eigenvalues),
            [0.02] * len(eigenvalues),
            linestyle="none",
            marker="|",
            markersize=12,
            color=COLOURS[1],
            transform=ax.get_xaxis_transform(),
            label="extreme eigenvalues",
        )
        ax.legend(frameon=False, fontsize=FONT)
    ax.set_xlabel("eigenvalue", fontsize=FONT)
    ax.set_ylabel("density", fontsize=FONT)
    _tidy(ax)
    return ax


def label_points(ax: Axes) -> None:
    """Write each point's name beside it, where it covers nothing and is nearest to its own point.

    Call `settle` first.
    """
    figure: Any = ax.figure
    renderer = figure.canvas.get_renderer()
    frame = ax.get_window_extent().extents
    lines = [line for line in ax.lines if _named(line)]
    points = [_end(ax, line) for line in lines]
    taken = list(_obstacles(ax, points, radius=5 * figure.dpi / 72))
    for line, point in zip(lines, points, strict=True):
        tried: list[tuple[float, Any, Box]] = []
        for dx, dy, horizontal, vertical in _places():
            note = _write(ax, line, (dx, dy), ha=horizontal, va=vertical)
            box: Box = tuple(note.get_window_extent(renderer).extents)
            inside = _overlap(box, frame) / _overlap(box, box)
            nearest = min(points, key=lambda p: _distance(box, p))
            cost = math.hypot(dx, dy) + 1e5 * (1 - inside) + 300 * (nearest != point)
            cost += sum(10 * _overlap(box, other) for other in taken)
            tried.append((cost, note, box))
        best = min(range(len(tried)), key=lambda i: tried[i][0])
        taken.append(tried.pop(best)[2])
        for _, note, _ in tried:
            note.remove()


def _obstacles(ax: Axes, points: Sequence[tuple[float, float]], *, radius: float) -> Iterator[Box]:
    """What a label must not cover: markers, error bars, arrows."""
    for x, y in points:
        yield x - radius, y - radius, x + radius, y + radius
    segments = [s for bars in ax.collections for s in getattr(bars, "get_segments", list)()]
    for (x0, y0), (x1, y1) in map(ax.transData.transform, segments):
        yield x0 - 1, min(y0, y1), x1 + 1, max(y0, y1)
    arrows = [text for text in ax.texts if getattr(text, "arrow_patch", None) is not None]
    for arrow in arrows:
        (x0, y0), (x1, y1) = ax.transData.transform([arrow.xyann, arrow.xy])  # type: ignore[attr-defined]
        for t in (i / 20 for i in range(1, 20)):
            x, y = x0 + t * (x1 - x0), y0 + t * (y1 - y0)
            yield x - 2, y - 2, x + 2, y + 2


def _write(ax: Axes, line: Any, offset: tuple[float, float], **alignment: str) -> Any:
    """The name of a line, at an offset in points from its last point."""
    from matplotlib import colors

    dark = tuple(0.75 * part for part in colors.to_rgb(line.get_color()))
    note = ax.annotate(
        str(line.get_label()),
        line.get_xydata()[-1],
        xytext=offset,
        textcoords="offset points",
        fontsize=FONT - 0.5,
        color=dark,
        annotation_clip=False,
        **alignment,  # type: ignore[arg-type]
    )
    note.set_in_layout(False)
    return note


def _places() -> Iterator[tuple[float, float, str, str]]:
    """Offsets in points around a marker, near ones first."""
    for distance in (7, 11, 16, 24):
        for dx, dy in ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, 1), (1, -1), (-1, -1)):
            horizontal = {1: "left", -1: "right", 0: "center"}[dx]
            vertical = {1: "bottom", -1: "top", 0: "center"}[dy]
            yield dx * distance, dy * distance, horizontal, vertical


def _overlap(a: Box, b: Box) -> float:
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    return width * height if width > 0 and height > 0 else 0.0


def _distance(box: Box, point: tuple[float, float]) -> float:
    x, y = point
    return math.hypot(max(box[0] - x, 0, x - box[2]), max(box[1] - y, 0, y - box[3]))


def label_ends(ax: Axes) -> None:
    """Write each line's name at its right end, moved apart where they would touch.

    Call `settle` first.
    """
    figure: Any = ax.figure
    height = (FONT + 1.5) * figure.dpi / 72
    lines = sorted(filter(_named, ax.lines), key=lambda line: _end(ax, line)[1])
    heights = [_end(ax, line)[1] for line in lines]
    for line, old, new in zip(lines, heights, spread(heights, height), strict=True):
        _write(ax, line, (10, (new - old) * 72 / figure.dpi), va="center")


def spread(positions: Sequence[float], distance: float) -> list[float]:
    """Sorted positions moved as little as needed to lie at least `distance` apart.

    >>> spread([0.0, 1.0, 10.0], 3.0)
    [-1.0, 2.0, 10.0]
    """
    groups: list[tuple[float, int]] = []  # centre and size of each run of touching labels
    for position in positions:
        centre, size = position, 1
        while groups and centre - groups[-1][0] < distance * (size + groups[-1][1]) / 2:
            other, count = groups.pop()
            centre = (centre * size + other * count) / (size + count)
            size += count
        groups.append((centre, size))
    return [
        centre + distance * (i - (size - 1) / 2) for centre, size in groups for i in range(size)
    ]


def _end(ax: Axes, line: Any) -> tuple[float, float]:
    """The last point of a line, in pixels."""
    x, y = ax.transData.transform(line.get_xydata()[-1])
    return float(x), float(y)


def _named(line: Any) -> bool:
    return not str(line.get_label()).startswith("_")


def _value(report: Report, measure: str) -> float:
    return report[measure].value


def _log_if_positive(ax: Axes, axis: str, values: Sequence[float]) -> None:
    """Curvatures and gaps span decades; a value at or below zero has no logarithm."""
    if min(values) > 0:
        room = 1.6 if axis == "x" else 1.2  # the margins
        _log_scale(ax, axis, decades=room * math.log10(max(values) / min(values)))


def _log_scale(ax: Axes, axis: str, *, decades: float) -> None:
    """A logarithmic axis with plain numbers on it, as many as are easy to read."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    (ax.set_xscale if axis == "x" else ax.set_yscale)("log")
    line = ax.xaxis if axis == "x" else ax.yaxis
    line.set_major_locator(LogLocator(subs=(1.0,) if decades > 2 else (1.0, 2.0, 5.0)))
    line.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    line.set_minor_formatter(NullFormatter())


def _tidy(ax: Axes) -> None:
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    ax.tick_params(labelsize=FONT - 1)
    ax.xaxis.label.set_fontsize(FONT)
    ax.yaxis.label.set_fontsize(FONT)
    ax.grid(True, which="major", color="#E6E6E6", linewidth=0.6)
    ax.set_axisbelow(True)
