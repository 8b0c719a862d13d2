"""Training that is saved on the way: what was interrupted goes on from there.

A snapshot is taken after an epoch, so that training from it gives the same bits as training that
was never interrupted. It holds tensors and plain values only, and nothing in it is ever executed: a
torch that a prepared file could make do so does not read it, and training starts anew.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ...files.torch_files import load_torch_file
from ...records import __version__
from ..run_results import EpochMeasurementRow, EpochRow, History

UNFINISHED = "unfinished"  # the folder of snapshots, in that of the store
EVERY = 5.0  # seconds between two snapshots, at least,
SHARE = 0.02  # and saving takes no more than this share of the time
FORMAT = 4  # of a file; another one is not read


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
        return self._last.exists()

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
        part = path.with_name(f"{path.name}.{os.getpid()}")
        try:
            path.parent.mkdir(exist_ok=True)
            torch.save(content, part)
            part.replace(path)
            if path == self._last:
                self._path.unlink(missing_ok=True)
        except OSError:
            part.unlink(missing_ok=True)
        self._saved = time.monotonic()
        self._took = self._saved - start

    def load(self) -> Snapshot | None:
        """The last snapshot; None if there is none that fits."""
        path = self._last if self.is_trained else self._path
        try:
            with path.open("rb") as file:
                found: Any = load_torch_file(file, what=repr(str(path)))
            if (found["version"], found["trained"]) != ([__version__, FORMAT], self._trained):
                return None
            histories = [_history(each) for each in json.loads(found["histories"])]
            return Snapshot(found["epoch"], histories, found["seconds"], found["state"])
        except Exception:  # nothing there, or damaged: training starts anew
            return None

    def remove(self) -> None:
        """Delete the file: the training is stored."""
        self._path.unlink(missing_ok=True)
        self._last.unlink(missing_ok=True)


def remove_snapshots(folder: pathlib.Path) -> None:
    """Delete the snapshots of all runs of a store, as far as one may write there."""
    with contextlib.suppress(OSError):
        for path in (folder / UNFINISHED).glob("*.pt"):
            path.unlink(missing_ok=True)
        (folder / UNFINISHED).rmdir()


def _history(fields: Mapping[str, Any]) -> History:
    return History(
        [EpochRow(**row) for row in fields["epochs"]],
        [EpochMeasurementRow(**row) for row in fields["measurements"]],
        fields["outcome"],
    )
