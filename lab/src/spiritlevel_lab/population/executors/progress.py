"""The progress of a study, reported while it runs."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from ..settings.run import RunSettings
from ..storage.store import Counts, Store
from .pace import seconds_left

EVERY = 0.25  # seconds between two reports
LOOK = 1.0  # seconds between two readings of all runs
SHARE = 50  # reading takes at most 1/SHARE of the time


@dataclasses.dataclass(frozen=True)
class StudyStatus(Counts):
    """How many runs are in each state, their epochs, and the time left."""

    seconds_left: float | None = None  # None: not known yet
    epochs: tuple[tuple[int, int], ...] = ()  # done and maximal, of each training process
    oldest: float | None = None  # seconds since the oldest running run started


Watch = Callable[[StudyStatus], None]


def study_status(store: Store) -> StudyStatus:
    """The current status, without epochs: the store only has those of ended runs."""
    return _Look(store.rows("runs")).study_status(store.counts())


def epochs_of(settings: RunSettings) -> int:
    """The maximal number of epochs; 0 for a task, which has none."""
    return 0 if settings.task is not None else settings.training.epochs


class ProgressReporter:
    """Calls a watcher with the status, at most a few times per second."""

    def __init__(self, store: Store, watch: Watch | None) -> None:
        self._store = store
        self._watch = watch
        self._look = _Look(())
        self._next_look = self._next_report = -math.inf
        self._error: Exception | None = None

    def now(self, epochs: Sequence[tuple[int, int]] = ()) -> None:
        """Report the current status."""
        if self._error is not None:
            raise self._error
        if self._watch is not None:
            self._report(self._watch, epochs)

    def sometimes(self, epochs: Sequence[tuple[int, int]] = ()) -> None:
        """Report the current status, unless the last report was a moment ago."""
        if time.monotonic() >= self._next_report:
            self.now(epochs)

    def epoch(self, done: int, total: int) -> None:
        """Report that a run has done `done` of `total` epochs; a total of 0 means none to count."""
        if self._watch is None or self._error is not None:
            return
        epochs = ((done, total),) if total else ()
        try:
            if done == 0 or time.monotonic() >= self._next_report:
                self._report(self._watch, epochs)
        except Exception as error:  # not the run's fault: raised after the run is stored
            self._error = error

    def _report(self, watch: Watch, epochs: Sequence[tuple[int, int]]) -> None:
        begin = time.monotonic()
        if begin >= self._next_look:
            self._look = _Look(self._store.rows("runs"), now=time.time())
            end = time.monotonic()
            self._next_look = end + max(LOOK, SHARE * (end - begin))
        status = self._look.study_status(self._store.counts())
        self._next_report = time.monotonic() + EVERY
        watch(dataclasses.replace(status, epochs=tuple(epochs)))


class _Look:
    """A reading of all runs, used for about a second."""

    def __init__(self, runs: Sequence[dict[str, Any]], *, now: float | None = None) -> None:
        self.left = seconds_left(runs, now=now)
        self.taken = [run["started"] for run in runs if run["status"] == "running"]

    def study_status(self, counts: Counts) -> StudyStatus:
        left = self.left if counts.remaining else 0.0
        oldest = time.time() - min(self.taken) if self.taken and counts.running else None
        return StudyStatus(**dataclasses.asdict(counts), seconds_left=left, oldest=oldest)
