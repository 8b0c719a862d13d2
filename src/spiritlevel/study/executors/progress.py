"""The progress of a study, reported while it runs, and an estimate of the time it still needs.

The store knows for every run when a worker took it, when it ended, how long it took and which
worker had it. It does not know how many run at once: a `vmap` worker takes a whole group, Ray's
driver takes more runs than it has processors. That is estimated from what happened.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..settings.run import RunSettings
from ..storage.store import Counts, Store

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


ENDED = ("done", "failed")
RunRow = Mapping[str, Any]  # a row of the table of runs


def seconds_left(runs: Sequence[RunRow], *, now: float | None = None) -> float | None:
    """Seconds until the study ends, at the pace of this session; None if no run has ended.

    Pass `now` if the runs are being executed at this moment; otherwise their last sign of life
    counts.
    """
    running = [run for run in runs if run["status"] == "running"]
    pending = sum(run["status"] == "pending" for run in runs)
    ended = [run for run in runs if run["status"] in ENDED and run["finished"] is not None]
    if not ended:
        return None
    if not running and not pending:
        return 0.0
    begun, now_ended = _session(running, ended)
    mean = _mean_seconds(now_ended) or _mean_seconds(ended)
    each = _seconds_per_run(running, now_ended, begun=begun, mean=mean)
    if each is None:
        return None
    last_ones = _seconds_to_keep(running, now_ended)
    if last_ones is None:  # the last runs end together, not before one of them takes its time
        left = max((pending + len(running)) * each, mean or 0.0)
    else:
        left = pending * each + min(last_ones, len(running) * each)
    # Subtract the work done since then; not by the clock alone, as workers may be dead.
    since = max((run["finished"] for run in now_ended), default=begun)
    signs = [run["heartbeat"] for run in running if run["heartbeat"] is not None]
    if running and now is not None:
        signs.append(now)
    return max(pending * each, left - max(0.0, max(signs, default=since) - since))


def _session(running: Sequence[RunRow], ended: Sequence[RunRow]) -> tuple[float, list[RunRow]]:
    """When the current workers started, and which runs have ended since then.

    Worker names are unique, so earlier sessions and the time between do not count. If no worker is
    active, it is the session of the run that ended last.
    """
    workers = {run["worker"] for run in running}
    if not workers:
        workers = {max(ended, key=lambda run: float(run["finished"]))["worker"]}
    theirs = [run["started"] for run in (*running, *ended) if run["worker"] in workers]
    latest = max(float(run["finished"]) for run in ended)
    begun = min((float(start) for start in theirs if start is not None), default=latest)
    return begun, [run for run in ended if run["finished"] > begun]


def _seconds_per_run(
    running: Sequence[RunRow], ended: Sequence[RunRow], *, begun: float, mean: float | None
) -> float | None:
    """Wall-clock time per finished run, all workers together: the smaller of two bounds.

    Time divided by runs is too long while few have ended. Work divided by workers is too long if
    one worker, such as Ray's driver, has several runs at once.
    """
    bounds = []
    if ended and (took := max(run["finished"] for run in ended) - begun) > 0:
        bounds.append(took / len(ended))
    if mean is not None:
        workers = {run["worker"] for run in running or ended}
        bounds.append(mean / max(1, len(workers)))
    return min(bounds, default=None)


def _mean_seconds(runs: Sequence[RunRow]) -> float | None:
    seconds = [run["seconds"] for run in runs if run["status"] == "done"]
    durations = [float(each) for each in seconds if each is not None]
    return sum(durations) / len(durations) if durations else None


def _seconds_to_keep(running: Sequence[RunRow], ended: Sequence[RunRow]) -> float | None:
    """Time left for networks that were trained together and now end one by one; None if none.

    Their training is over, so each still takes the time between two ends.
    """
    by_worker: dict[Any, list[RunRow]] = {}
    for run in running:
        by_worker.setdefault(run["worker"], []).append(run)
    left = []
    for worker, claimed in by_worker.items():
        taken = max((run["started"] for run in claimed if run["started"] is not None), default=0.0)
        since = [r for r in ended if r["worker"] == worker and r["finished"] > taken]
        ends = sorted(run["finished"] for run in since)
        # More work than time: they ran side by side, so one end says nothing about the others.
        if len(ends) < 2 or sum(run["seconds"] or 0.0 for run in since) > ends[-1] - taken:
            return None
        left.append(len(claimed) * (ends[-1] - ends[0]) / (len(ends) - 1))
    return max(left, default=None)
