"""Applying a penalty on one step in k, with the same expected gradient."""

from __future__ import annotations

from .argument_checks import check_count


class StepSchedule:
    """Counts the steps of training. Steps 0, k, 2k, … are due, and count k times as much.

    >>> schedule = StepSchedule(3)
    >>> [schedule.advance() for _ in range(6)]
    [3, 0, 0, 3, 0, 0]
    """

    def __init__(self, every: int) -> None:
        """`every=1` is due at each step."""
        self.every = check_count("every", every, "every=8 applies the penalty on one step in 8.")
        self.steps = 0

    @property
    def factor(self) -> int:
        """What the penalty of the next step is multiplied by; 0 if that step is skipped."""
        return self.every if self.steps % self.every == 0 else 0

    def advance(self) -> int:
        """Count a step and return its factor."""
        factor = self.factor
        self.steps += 1
        return factor
