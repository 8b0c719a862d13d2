"""A run while it is at work: who hears of its epochs, and where its trainings are saved on the way.

A run may train several networks one after another, as some tasks do. Each is saved under the run's
id and its place among them. A run that was interrupted finds those that had ended, and goes on
within the one that had not.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import json
import pathlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ...analysis.landscape.fingerprints import of_tensors
from ..models.registry import is_own
from .machine import machine
from .networks import NetworkRun
from .training_snapshots import Snapshot, SnapshotFile

ALONE = ".alone"  # in the names of their files: a group's bears the name of its first run
OnEpoch = Callable[[int, int], None]  # epochs done, epochs at most


@dataclasses.dataclass
class RunAttempt:
    """One of possibly several attempts at a run.

    Args:
        run: its id.
        on_epoch: hears of the epochs of each training.
        unfinished: the folder where trainings are saved; None if they are not.
    """

    run: str = ""
    on_epoch: OnEpoch | None = None
    unfinished: pathlib.Path | None = None
    seconds_before: float = 0.0  # of training, in the attempts before this one
    trainings: int = 0  # that have begun

    def training(self, run: NetworkRun) -> SavedTraining:
        """The next training: of a network that is built and not trained yet, or not by this one."""
        self.trainings += 1
        file = None
        if self.unfinished is not None and is_own(run.settings.model.name):
            name = f"{self.run}{ALONE}" + (f"-{self.trainings}" if self.trainings > 1 else "")
            file = SnapshotFile(self.unfinished, name, _what_is_trained(run))
        training = SavedTraining(run, file, self.on_epoch)
        self.seconds_before += training.seconds_before
        return training


class SavedTraining:
    """One training: where it goes on, and what is told and saved after each epoch.

    A user's network is not saved. It may keep what is neither weight nor buffer, such as a counter
    in Python, and would go on without it.

    Args:
        run: whose history is saved and restored.
        file: where it is saved; None if it is not.
        on_epoch: hears of its epochs.
    """

    def __init__(
        self, run: NetworkRun, file: SnapshotFile | None, on_epoch: OnEpoch | None
    ) -> None:
        self._run, self._file, self._on_epoch = run, file, on_epoch
        self._start = time.perf_counter()
        last = None if file is None else file.load()
        self.epoch = 0 if last is None else last.epoch
        self.state: Mapping[str, Any] | None = None if last is None else last.state
        self.seconds_before = 0.0 if last is None else last.seconds
        if last is not None:
            [run.history] = last.histories

    def after_epoch(self, state: Callable[[], Mapping[str, Any]]) -> None:
        """Tell of it, and save it where it is time to.

        Args:
            state: gives all that the next epochs depend on besides the run's history.
        """
        self.epoch += 1
        if self._on_epoch is not None:
            self._on_epoch(self.epoch, self._run.settings.training.epochs)
        history, file = self._run.history, self._file
        if file is not None and (file.due or (history.outcome and file.worth_keeping)):
            seconds = self.seconds_before + time.perf_counter() - self._start
            file.save(Snapshot(self.epoch, [history], seconds, state()))


_attempt: contextvars.ContextVar[RunAttempt] = contextvars.ContextVar("attempt")


def current() -> RunAttempt:
    """The attempt at work; outside of any, one that nobody hears of and that saves nothing."""
    return _attempt.get(RunAttempt())


@contextlib.contextmanager
def at_work(attempt: RunAttempt) -> Iterator[None]:
    """All trainings in the block belong to this attempt."""
    token = _attempt.set(attempt)
    try:
        yield
    finally:
        _attempt.reset(token)


def remove_snapshots_of(run: str, unfinished: pathlib.Path) -> None:
    """What was saved of a run that trained alone, by its id: it has ended."""
    with contextlib.suppress(OSError):
        for path in unfinished.glob(f"{run}{ALONE}*"):
            path.unlink(missing_ok=True)


def _what_is_trained(run: NetworkRun) -> list[str]:
    """Digits depend on the machine and on where training starts: both must be the same again."""
    facts = json.loads(machine(run.data.x.device, run.settings.training.threads))
    facts.pop("host")
    return [run.settings.id, json.dumps(facts, sort_keys=True), of_tensors(run.model.state_dict())]
