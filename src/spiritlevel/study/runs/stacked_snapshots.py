"""Networks that train together, saved while they train: what was interrupted goes on from there.

A snapshot is taken after an epoch, so that training from it gives the same bits as training that
was never interrupted. The last one, in which all networks have ended, stays until all are measured:
every worker can take networks from there. A snapshot holds tensors and plain values only, and
nothing in it is ever executed: a torch that a prepared file could make do so does not read it, and
training starts anew.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ...files.torch_files import load_torch_file
from ...records import __version__
from .results import EpochMeasurementRow, EpochRow, History

EVERY = 5.0  # seconds between two snapshots of a group, at least,
SHARE = 0.02  # and saving takes no more than this share of the time
FORMAT = 3  # of a file; another one is not read


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """A group after an epoch.

    Args:
        epoch: the epochs done.
        active: places in the group of the networks that are still trained.
        optimizer: the state of the stack, by name.
        generators: one for each network of the group, for the order of its samples.
        weights: of the networks that have ended, by place.
        histories: one for each network of the group.
        seconds: that the group has been trained for.
    """

    epoch: int
    active: tuple[int, ...]
    optimizer: Mapping[str, Any]
    generators: Sequence[Tensor]
    weights: Mapping[int, Mapping[str, Tensor]]
    histories: Sequence[History]
    seconds: float


class SnapshotFile:
    """Where the snapshots of a group go; each replaces the one before."""

    def __init__(self, folder: pathlib.Path, ids: Sequence[str]) -> None:
        self._path, self._ids = folder / f"{ids[0]}.pt", list(ids)
        self._trained = folder / f"{ids[0]}.trained.pt"  # a name tells, without reading the file
        self._saved, self._took = time.monotonic(), 0.0

    @property
    def due(self) -> bool:
        """Whether it is time for another one."""
        return time.monotonic() - self._saved >= max(EVERY, self._took / SHARE)

    @property
    def is_trained(self) -> bool:
        """Whether the last snapshot is one in which all networks have ended."""
        return self._trained.exists()

    def save(self, snapshot: Snapshot) -> None:
        """Replace the last snapshot; a disk that is full costs only the snapshot."""
        content = {
            "version": [__version__, FORMAT],
            "ids": self._ids,
            "histories": json.dumps([dataclasses.asdict(each) for each in snapshot.histories]),
            "epoch": snapshot.epoch,
            "active": list(snapshot.active),
            "optimizer": dict(snapshot.optimizer),
            "generators": list(snapshot.generators),
            "weights": {place: dict(each) for place, each in snapshot.weights.items()},
            "seconds": snapshot.seconds,
        }
        start = time.monotonic()
        path = self._path if snapshot.active else self._trained
        part = path.with_name(f"{path.name}.{os.getpid()}")
        try:
            path.parent.mkdir(exist_ok=True)
            torch.save(content, part)
            part.replace(path)
            if path == self._trained:
                self._path.unlink(missing_ok=True)
        except OSError:
            part.unlink(missing_ok=True)
        self._saved = time.monotonic()
        self._took = self._saved - start

    def load(self) -> Snapshot | None:
        """The last snapshot; None if there is none that fits these networks."""
        path = self._trained if self.is_trained else self._path
        try:
            with path.open("rb") as file:
                found: Any = load_torch_file(file, what=repr(str(path)))
            if (found["version"], found["ids"]) != ([__version__, FORMAT], self._ids):
                return None
            return Snapshot(
                found["epoch"],
                tuple(found["active"]),
                found["optimizer"],
                found["generators"],
                found["weights"],
                [_history(each) for each in json.loads(found["histories"])],
                found["seconds"],
            )
        except Exception:  # nothing there, or damaged: training starts anew
            return None

    def remove(self) -> None:
        """The group has ended."""
        self._path.unlink(missing_ok=True)
        self._trained.unlink(missing_ok=True)


def _history(fields: Mapping[str, Any]) -> History:
    return History(
        [EpochRow(**row) for row in fields["epochs"]],
        [EpochMeasurementRow(**row) for row in fields["measurements"]],
        fields["outcome"],
    )
