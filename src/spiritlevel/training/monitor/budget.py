"""When to measure: every so many steps or epochs, within a share of the training time."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch

from ...errors import SpiritlevelError, brief
from ...need import need, number, or_none

Clock = Callable[[], float]


@dataclasses.dataclass(frozen=True)
class Every:
    """A number of steps or epochs."""

    count: int
    unit: Literal["step", "epoch"]

    def due(self, unit: Literal["step", "epoch"], finished: int) -> bool:
        """Whether to measure when `finished` steps or epochs are done."""
        return unit == self.unit and finished % self.count == 0


def parse_every(every: int | str) -> Every:
    """What a user wrote for `every`, as a count and a unit.

    >>> parse_every("epoch"), parse_every(50), parse_every("10 steps")
    (Every(count=1, unit='epoch'), Every(count=50, unit='step'), Every(count=10, unit='step'))
    """
    if isinstance(every, int) and not isinstance(every, bool):
        count, unit = every, "step"
    else:
        match = re.fullmatch(r"\s*(\d*)\s*(step|epoch)s?\s*", str(every))
        count, unit = (int(match[1] or 1), match[2]) if match else (0, "")
    if count < 1:
        raise SpiritlevelError(
            "The 'every' argument must be a number of steps of at least 1, 'epoch', or a text "
            f"such as '10 steps' or '2 epochs'. Got {brief(every)}."
        )
    return Every(count, "step" if unit == "step" else "epoch")


def check_overhead(share: float | None) -> None:
    """Refuse what is not a share of the training time between 0 and 1."""
    fits = or_none(number(above=0, below=1))
    wanted = "a share of the training time between 0 and 1"
    then = "0.05 lets measuring add 5 % to it; None sets no limit."
    need("max_overhead", share, fits, wanted, then)


class TimeBudget:
    """Compares the time spent on measuring with the time that everything else took.

    A measurement is allowed when, if it takes as long as expected, all of them together stay
    within `share` of the training time. Expected is what the last one took; before the first, what
    a trial on a part of the samples suggests.
    """

    def __init__(self, share: float | None, clock: Clock) -> None:
        check_overhead(share)
        self.share, self.clock = share, clock
        self.measuring = 0.0
        self.expected: float | None = None  # seconds that the next measurement will take
        self._before = 0.0  # training time from before a resume
        self._began, self._measured_then = clock(), 0.0

    @property
    def training(self) -> float:
        """Seconds since the start, without those spent on measuring."""
        since = self.clock() - self._began - (self.measuring - self._measured_then)
        return self._before + since

    def allows(self) -> bool:
        """Whether another measurement fits into the budget."""
        if self.share is None or self.expected is None:
            return True
        return self.measuring + self.expected <= self.share * self.training

    @contextlib.contextmanager
    def spending(self, device: torch.device) -> Iterator[None]:
        """The time spent in the block counts as measuring."""
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # what training still has to do there does not count
        start = self.clock()
        try:
            yield
        finally:
            self.expected = self.clock() - start
            self.measuring += self.expected

    def state_dict(self) -> dict[str, Any]:
        """The two times and what the next measurement will take."""
        times = {"training": self.training, "measuring": self.measuring}
        return times | {"expected": self.expected}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from those times; the time in between is not counted."""
        self.measuring, self.expected = float(state["measuring"]), state["expected"]
        self._before = float(state["training"])
        self._began, self._measured_then = self.clock(), self.measuring

    def restart(self) -> None:
        """Training begins now: the time since the start was not training."""
        self._began, self._measured_then = self.clock(), self.measuring
