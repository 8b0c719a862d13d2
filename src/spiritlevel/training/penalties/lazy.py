"""Spending a penalty on one step in k, with the same expected gradient."""

from __future__ import annotations

from .arguments import check_count


class LazySchedule:
    """Counts steps; step 0, k, 2k, … are due and count k-fold.

    >>> schedule = LazySchedule(3)
    >>> [schedule.advance() for _ in range(6)]
    [3, 0, 0, 3, 0, 0]
    """

    def __init__(self, every: int) -> None:
        """`every=1` is due at each step."""
        self.every = check_count("every", every, "every=8 spends the penalty on one step in 8.")
        self.steps = 0

    @property
    def factor(self) -> int:
        """What the penalty of the coming step is multiplied by: 0 where it is left out."""
        return self.every if self.steps % self.every == 0 else 0

    def advance(self) -> int:
        """The factor of this step; the next one is then to come."""
        factor = self.factor
        self.steps += 1
        return factor
