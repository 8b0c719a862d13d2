"""Names beside what they name, where they cover nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from .style import FONT

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Box = tuple[float, float, float, float]  # left, bottom, right, top, in pixels


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
