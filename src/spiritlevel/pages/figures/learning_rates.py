"""The learning rate beside the edge of stability, from the rows of a monitor."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...errors import SpiritlevelError
from ...training.learning_rate.watch import CRITICAL, SHARPNESS, THRESHOLD
from .style import COLOURS, FONT, GREY, log_if_positive, new_axes, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WORDS = {  # of each column: its name, its colour and its line
    SHARPNESS: ("sharpness", COLOURS[0], "-"),
    THRESHOLD: ("edge of stability", GREY, "--"),
    CRITICAL: ("critical sharpness of the last update", COLOURS[1], ":"),
}


def learning_rate(rows: Sequence[Mapping[str, Any]], *, ax: Axes | None = None) -> Axes:
    """Sharpness and threshold over the steps; a line stands where the monitor warned.

    Args:
        rows: `monitor.rows` of a FlatnessMonitor with an optimizer.
        ax: where to draw; None makes a figure.
    """
    ax = new_axes(ax, 5.2, 3.0)
    drawn: list[float] = []
    for column, (label, colour, dashes) in WORDS.items():
        points = [(row["step"], row[column]) for row in rows if _is_number(row.get(column))]
        if points:
            steps, values = zip(*points, strict=True)
            ax.plot(steps, values, dashes, color=colour, linewidth=1.2, label=label)
            drawn += values
    if not drawn:
        raise SpiritlevelError(
            "The 'rows' argument must be rows of a monitor that watches the learning rate. Got "
            f"{len(rows)} without {SHARPNESS!r}. Pass optimizer= to FlatnessMonitor."
        )
    for i, row in enumerate(row for row in rows if row.get("warning")):
        named = "warning" if i == 0 else None
        ax.axvline(row["step"], color=COLOURS[5], linewidth=0.8, label=named)
    log_if_positive(ax, "y", drawn)
    ax.set_xlabel("step", fontsize=FONT)
    ax.set_ylabel("curvature", fontsize=FONT)
    # above the axes: inside it would lie on lines
    above: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0.0, 1.0), "ncols": 2}
    ax.legend(frameon=False, fontsize=FONT - 1, **above)
    tidy(ax)
    return ax


def _is_number(value: Any) -> bool:
    return isinstance(value, float | int) and math.isfinite(value)
