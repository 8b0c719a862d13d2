"""Reading files that other programs are writing: never changed, never waited for."""

from __future__ import annotations

import math
import time
from typing import Any

from ...population.storage.copies import Stamp

SETTLED = 2.0  # seconds; file systems give writes within one tick of their clock the same time


class Unreadable(Exception):
    """Nothing to show for now; the text says why, and what makes it go on."""


def is_settled(stamp: Stamp) -> bool:
    """Whether a write after the stamp was taken is sure to change it."""
    newest = max((each[2] for each in stamp if each is not None), default=0)
    return time.time() - newest / 1e9 > SETTLED


def number(value: Any) -> float | None:
    """A finite number as it is or as a text; anything else is None, as JSON and Plotly have it.

    >>> number("2.5"), number("inf"), number(None), number({})
    (2.5, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        read = float(value)
    except (ValueError, OverflowError):
        return None
    return read if math.isfinite(read) else None


def cause(error: Exception) -> str:
    """Why the system refused, without the path that the sentence around it names."""
    return getattr(error, "strerror", None) or str(error)
