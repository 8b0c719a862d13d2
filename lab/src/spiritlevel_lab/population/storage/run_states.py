"""The states of runs: how many are in each, and which one a worker has taken."""

from __future__ import annotations

import dataclasses

from ..settings.run import RunSettings


@dataclasses.dataclass(frozen=True)
class Claim:
    """A run that one worker has taken; `attempt` tells a later taker from an earlier one."""

    settings: RunSettings
    id: str
    worker: str
    attempt: int


@dataclasses.dataclass(frozen=True)
class Counts:
    """How many runs are in each state."""

    pending: int = 0
    running: int = 0
    done: int = 0
    failed: int = 0

    @property
    def total(self) -> int:
        """The number of runs."""
        return self.pending + self.running + self.done + self.failed

    @property
    def remaining(self) -> int:
        """Not ended in one way or the other."""
        return self.pending + self.running
