"""Training that is saved on the way: what was interrupted goes on from there.

A snapshot is taken after an epoch, so that training from it gives the same bits as training that
was never interrupted. It holds tensors and plain values only, and nothing in it is ever executed: a
torch that a prepared file could make do so does not read it, and training starts anew.

A run may train several networks one after another, as some tasks do. Each is saved under the run's
id and its place among them. A run that was interrupted finds those that had ended, and goes on
within the one that had not.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import hashlib
import io
import json
import pathlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch

from spiritlevel.ground.errors import SpiritlevelError
from spiritlevel.ground.files import is_plain, own_folder, remove_leftovers, write_atomically
from spiritlevel.ground.files.reading import load_torch_file
from spiritlevel.ground.version import __version__
from spiritlevel.verbs.landscape.cache import of_tensors

from ..registry import is_own
from ..run_results import EpochMeasurementRow, EpochRow, History
from .machine import machine
from .networks import NetworkRun

UNFINISHED = "unfinished"  # the folder of snapshots, in that of the store
EVERY = 5.0  # seconds between two snapshots, at least,
SHARE = 0.02  # and saving takes no more than this share of the time
FORMAT = 5  # of a file; another one is not read
BEGINNING = b"spiritlevel snapshot "
HEADING = len(BEGINNING) + 65  # with the checksum of what follows, and the end of the line
ALONE = ".alone"  # in the names of their files: a group's bears the name of its first run
OnEpoch = Callable[[int, int], None]  # epochs done, epochs at most


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """One network, or several that train together, after an epoch.

    Args:
        epoch: the epochs done.
        histories: one for each network.
        seconds: of training.
        state: all else that the next epochs depend on, as tensors and plain values.
    """

    epoch: int
    histories: Sequence[History]
    seconds: float
    state: Mapping[str, Any]

    @property
    def is_last(self) -> bool:
        """Whether the training of all networks has ended."""
        return all(history.outcome for history in self.histories)


class SnapshotFile:
    """Where the snapshots of a training go; each replaces the one before.

    Args:
        folder: made when the first one is saved.
        name: of the file.
        trained: what is trained. A file that says something else is not used.
    """

    def __init__(self, folder: pathlib.Path, name: str, trained: Sequence[str]) -> None:
        self._path, self._trained = folder / f"{name}.pt", list(trained)
        self._last = folder / f"{name}.trained.pt"  # a name tells, without reading the file
        self._begun = self._saved = time.monotonic()
        self._took = 0.0

    @property
    def due(self) -> bool:
        """Whether it is time for another one."""
        return time.monotonic() - self._saved >= self._pause

    @property
    def worth_keeping(self) -> bool:
        """Whether a training that has ended took long enough to be saved once more."""
        return time.monotonic() - self._begun >= self._pause

    @property
    def _pause(self) -> float:
        return max(EVERY, self._took / SHARE)

    @property
    def is_trained(self) -> bool:
        """Whether there is a snapshot in which the training of all networks has ended."""
        return _is_snapshot(self._last)

    def save(self, snapshot: Snapshot) -> None:
        """Replace the last snapshot; a disk that is full costs only the snapshot."""
        content = {
            "version": [__version__, FORMAT],
            "trained": self._trained,
            "epoch": snapshot.epoch,
            "histories": json.dumps([dataclasses.asdict(each) for each in snapshot.histories]),
            "seconds": snapshot.seconds,
            "state": dict(snapshot.state),
        }
        start = time.monotonic()
        path = self._last if snapshot.is_last else self._path
        with contextlib.suppress(SpiritlevelError):  # no room, or a link in place of the folder
            own_folder(path.parent.parent, path.parent.name)
            write_atomically(path, packed(content))
            if path == self._last:
                _remove(self._path)
        self._saved = time.monotonic()
        self._took = self._saved - start

    def load(self) -> Snapshot | None:
        """The last snapshot; None if there is none that fits."""
        path = self._last if self.is_trained else self._path
        try:
            found = unpacked(path)
            if (found["version"], found["trained"]) != ([__version__, FORMAT], self._trained):
                return None
            histories = [_history(each) for each in json.loads(found["histories"])]
            return Snapshot(found["epoch"], histories, found["seconds"], found["state"])
        except Exception:  # nothing there, or damaged: training starts anew
            return None

    def remove(self) -> None:
        """Delete the file: the training is stored."""
        _remove(self._path)
        _remove(self._last)


def remove_snapshots(folder: pathlib.Path, runs: Collection[str]) -> None:
    """Delete the snapshots of these runs of a store, as far as one may write there."""
    unfinished = folder / UNFINISHED
    if unfinished.is_symlink():  # what lies behind it is not the store's
        return
    with contextlib.suppress(OSError):
        for path in unfinished.glob("*.pt"):
            if path.name.partition(".")[0] in runs:
                _remove(path)
        unfinished.rmdir()


def _remove(path: pathlib.Path) -> None:
    """Delete a snapshot and what is left of unfinished ones; another file of this name stays."""
    if path.parent.is_symlink():
        return
    remove_leftovers(path)
    if _is_snapshot(path):
        path.unlink(missing_ok=True)


def _is_snapshot(path: pathlib.Path) -> bool:
    """Whether a file is a snapshot, by how it begins."""
    if not is_plain(path):
        return False
    with path.open("rb") as file:
        return file.read(len(BEGINNING)) == BEGINNING


def packed(content: Mapping[str, Any]) -> bytes:
    """A snapshot as bytes, behind a line with their checksum: torch notices no flipped bit."""
    saved = io.BytesIO()
    torch.save(content, saved)
    return _heading(saved.getvalue()) + saved.getvalue()


def unpacked(path: pathlib.Path) -> Any:
    """The content of a snapshot; an error if a byte of it has changed."""
    content = path.read_bytes()
    heading, rest = content[:HEADING], content[HEADING:]
    if heading != _heading(rest):
        raise SpiritlevelError(f"The snapshot {str(path)!r} is damaged. Remove it.")
    return load_torch_file(io.BytesIO(rest), what=repr(str(path)))


def _heading(content: bytes) -> bytes:
    return BEGINNING + hashlib.sha256(content).hexdigest().encode() + b"\n"


def _history(fields: Mapping[str, Any]) -> History:
    return History(
        [EpochRow(**row) for row in fields["epochs"]],
        [EpochMeasurementRow(**row) for row in fields["measurements"]],
        fields["outcome"],
    )


# -- a run while it is at work -------------------------------------------------------------------


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
            _remove(path)


def _what_is_trained(run: NetworkRun) -> list[str]:
    """Digits depend on the machine and on where training starts: both must be the same again."""
    facts = json.loads(machine(run.data.x.device, run.settings.training.threads))
    facts.pop("host")
    return [run.settings.id, json.dumps(facts, sort_keys=True), of_tensors(run.model.state_dict())]
