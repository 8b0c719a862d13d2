"""One warning when the sharpness goes over the edge, and none until it has been back."""

from __future__ import annotations

from typing import Any

BACK = 0.9  # part of a level below 1 that counts as back


class Crossing:
    """Remembers on which side of the level a ratio is."""

    def __init__(self, level: float | None, rows: int = 1) -> None:
        """`level` None never crosses; it takes `rows` ratios in a row to be beyond."""
        self.level, self.rows = level, rows
        # at the edge of stability the ratio swings around 1: all that is one crossing
        self.back = 1.0 if level is None else min(1.0, BACK * level)
        self.beyond = False
        self._above = 0  # ratios in a row

    def crossed(self, ratio: float) -> bool:
        """Whether this ratio goes beyond the level, and the ones since the last return did not.

        >>> crossing = Crossing(1.5)
        >>> [crossing.crossed(ratio) for ratio in (1.0, 1.6, 1.1, 1.6, 0.9, 2.0)]
        [False, True, False, False, False, True]
        >>> crossing = Crossing(1.5, rows=2)
        >>> [crossing.crossed(ratio) for ratio in (9.0, 1.0, 9.0, 9.0, 9.0)]
        [False, False, False, True, False]
        """
        if self.level is None:
            return False
        self._above = self._above + 1 if ratio > self.level else 0
        new = self._above >= self.rows and not self.beyond
        self.beyond = new or (self.beyond and ratio > self.back)
        return new

    def state_dict(self) -> dict[str, Any]:
        """Whether the ratio is beyond the level."""
        return {"beyond": self.beyond}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue: what was warned about is not new."""
        self.beyond = bool(state["beyond"])
