"""The coordinates at which a slice is evaluated."""

from __future__ import annotations

import math

from ...errors import SpiritlevelError, brief

POINTS = {1: 41, 2: 21}  # along each axis, by the number of axes
MAX_POINTS = 100_000  # along an axis: each takes a pass over the data
REACH = {False: 1.0, True: 0.5}  # whether between checkpoints
SNAP = 1e-9  # of the axis: a grid point this close to a checkpoint is the checkpoint


def coordinates(*, points: int, reach: float, between: bool) -> list[float]:
    """Equal steps over one axis; the networks themselves are always among them.

    From −reach to reach around one network at 0; between networks at 0 and 1, `reach` is how far
    the axis goes beyond both.

    >>> coordinates(points=5, reach=1.0, between=False)
    [-1.0, -0.5, 0.0, 0.5, 1.0]
    >>> coordinates(points=4, reach=0.5, between=True)
    [-0.5, 0.0, 0.16666666666666663, 0.8333333333333333, 1.0, 1.5]
    """
    low, high = -reach, (1.0 + reach if between else reach)
    networks = (0.0, 1.0) if between else (0.0,)
    length = high - low
    places = {low + length * i / (points - 1) for i in range(points)}
    for network in networks:
        places = {x for x in places if abs(x - network) > SNAP * length} | {network}
    return sorted(places)


def check_grid(*, dimensions: int, points: int | None, reach: float | None, between: bool) -> None:
    """Raise SpiritlevelError for settings that give no grid."""
    if dimensions not in POINTS:
        raise SpiritlevelError(
            f"The 'dimensions' argument must be 1 (a line) or 2 (a plane). Got {brief(dimensions)}."
        )
    if points is not None and not 2 <= points <= MAX_POINTS:
        raise SpiritlevelError(
            "The 'points' argument must be at least 2, so that an axis has two ends, and at most "
            f"{MAX_POINTS:,}. Got {points!r:.30}. Leave it out for {POINTS[1]} on a line and "
            f"{POINTS[2]} by {POINTS[2]} on a plane."
        )
    if reach is None:
        return
    if not math.isfinite(reach) or reach < 0 or (reach == 0 and not between):
        need = "not be negative" if between else "be positive"
        raise SpiritlevelError(
            f"The 'reach' argument must {need} and finite: how far the slice goes. Got "
            f"{brief(reach)}. Leave it out for {REACH[between]}."
        )
