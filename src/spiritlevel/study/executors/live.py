"""How far a study is, told while the work goes on."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from ..settings.run import RunSettings
from ..storage.store import Counts, Store
from .pace import seconds_left

EVERY = 0.25  # seconds between two words on the epochs of a run
LOOK = 1.0  # seconds between two looks at all runs
SHARE = 50  # and the looks take at most one part in so many of the time


@dataclasses.dataclass(frozen=True)
class Standing(Counts):
    """How many runs are in each state, and what is going on."""

    seconds_left: float | None = None  # None: nothing is known yet
    epochs: tuple[tuple[int, int], ...] = ()  # done and at most, for each process at training
    oldest: float | None = None  # seconds since the first of the runs at work was taken


Watch = Callable[[Standing], None]


def standing(store: Store) -> Standing:
    """Of this moment, without the epochs: the store has those of ended runs alone."""
    return _Look(store.rows("runs")).standing(store.counts())


def epochs_of(settings: RunSettings) -> int:
    """At most; 0 for a run that has none to count."""
    return 0 if settings.task is not None else settings.training.epochs


class Live:
    """Tells a watcher, where there is one, as often as is good and no oftener."""

    def __init__(self, store: Store, watch: Watch | None) -> None:
        self._store = store
        self._watch = watch
        self._look = _Look(())
        self._next_look = self._next_word = -math.inf
        self._trouble: Exception | None = None

    def now(self, epochs: Sequence[tuple[int, int]] = ()) -> None:
        """Tell what the store says at this moment."""
        if self._trouble is not None:
            raise self._trouble
        if self._watch is not None:
            self._tell(self._watch, epochs)

    def sometimes(self, epochs: Sequence[tuple[int, int]] = ()) -> None:
        """The same, for who asks all the time."""
        if time.monotonic() >= self._next_word:
            self.now(epochs)

    def epoch(self, done: int, total: int) -> None:
        """Within a run: `done` of `total` epochs; 0 when it begins, and a total of 0 for none."""
        if self._watch is None or self._trouble is not None:
            return
        epochs = ((done, total),) if total else ()
        try:
            if done == 0 or time.monotonic() >= self._next_word:
                self._tell(self._watch, epochs)
        except Exception as error:  # not the run's fault: it is raised once the run is kept
            self._trouble = error

    def _tell(self, watch: Watch, epochs: Sequence[tuple[int, int]]) -> None:
        begin = time.monotonic()
        if begin >= self._next_look:
            self._look = _Look(self._store.rows("runs"), now=time.time())
            end = time.monotonic()
            self._next_look = end + max(LOOK, SHARE * (end - begin))
        found = self._look.standing(self._store.counts())
        self._next_word = time.monotonic() + EVERY
        watch(dataclasses.replace(found, epochs=tuple(epochs)))


class _Look:
    """What the rows of all runs say; they change little within a second."""

    def __init__(self, runs: Sequence[dict[str, Any]], *, now: float | None = None) -> None:
        self.left = seconds_left(runs, now=now)
        self.taken = [run["started"] for run in runs if run["status"] == "running"]

    def standing(self, counts: Counts) -> Standing:
        left = self.left if counts.remaining else 0.0
        oldest = time.time() - min(self.taken) if self.taken and counts.running else None
        return Standing(**dataclasses.asdict(counts), seconds_left=left, oldest=oldest)
