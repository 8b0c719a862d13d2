"""Numbers of a study's runs as its tables and charts show them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ...content import Cell
from ...study.population import label


def setting(value: Any) -> Cell:
    """A setting's value for a table, where a number sorts as one."""
    return value if isinstance(value, int | float) else label(value)


def number(value: Any) -> float | None:
    """Six digits, which is more than a picture or table can show; None unless finite.

    >>> number(1.23456789), number(float("nan")), number(None)
    (1.23457, None, None)
    """
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.6g}")


def finite(rows: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    """The column's numbers, without those that are missing or not finite."""
    values = (row.get(name) for row in rows)
    return [value for value in values if value is not None and math.isfinite(value)]


def quartiles(values: Sequence[float]) -> list[float | None]:
    """Smallest, quarter, median, three quarters, largest; linear between neighbours.

    >>> quartiles([1.0, 2.0, 3.0, 4.0])
    [1.0, 1.75, 2.5, 3.25, 4.0]
    """
    ordered = sorted(values)
    cuts = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        place = share * (len(ordered) - 1)
        below = math.floor(place)
        above = min(below + 1, len(ordered) - 1)
        cuts.append(number(ordered[below] + (place - below) * (ordered[above] - ordered[below])))
    return cuts
