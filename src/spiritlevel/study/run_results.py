"""The result of a run, in plain types, so that it can be sent between processes."""

from __future__ import annotations

import dataclasses
import pathlib
import traceback
from collections.abc import Sequence

from ..errors import SpiritlevelError
from ..results import Measurement, Report


@dataclasses.dataclass(frozen=True)
class EpochRow:
    """Loss and accuracy on all training and test data after an epoch, and on validation data."""

    epoch: int
    train_loss: float
    train_accuracy: float
    test_loss: float
    test_accuracy: float
    validation_loss: float | None = None
    validation_accuracy: float | None = None


@dataclasses.dataclass(frozen=True)
class MeasurementRow:
    """One number of a report; the whole network has layer ""."""

    measure: str
    layer: str
    value: float
    stderr: float | None
    data_stderr: float | None
    exact: bool
    status: str
    text: str


@dataclasses.dataclass(frozen=True)
class EpochMeasurementRow(MeasurementRow):
    """One number of a report that was made after an epoch, while the network was trained."""

    epoch: int


@dataclasses.dataclass
class History:
    """What was seen while a network was trained, and why training ended."""

    epochs: list[EpochRow] = dataclasses.field(default_factory=list)
    measurements: list[EpochMeasurementRow] = dataclasses.field(default_factory=list)
    outcome: str = ""

    def add(self, row: EpochRow, measured: Sequence[MeasurementRow] | None) -> None:
        """Add an epoch, and what was measured after it."""
        self.epochs.append(row)
        for each in measured or ():
            self.measurements.append(EpochMeasurementRow(**vars(each), epoch=row.epoch))


@dataclasses.dataclass(frozen=True)
class RunResult:
    """A finished run; one that trained no network has no epochs and an empty checkpoint.

    With an `error` the network was trained and could not be measured: the run counts as failed,
    and its epochs and checkpoint are kept.
    """

    outcome: str
    epochs: tuple[EpochRow, ...]
    measurements: tuple[MeasurementRow, ...]
    checkpoint: bytes
    num_train: int
    num_test: int
    seconds: float
    machine: str  # JSON
    epoch_measurements: tuple[EpochMeasurementRow, ...] = ()
    error: str | None = None


def describe(error: BaseException) -> str:
    """The text of an error in one line; of errors that are not ours with their type."""
    text = " ".join(str(error).split())
    return text if isinstance(error, SpiritlevelError) else f"{type(error).__name__}: {text}"


def failure(error: BaseException) -> str:
    """Why a run failed, for the store; of errors that are not ours also where they were raised."""
    text, frames = describe(error), traceback.extract_tb(error.__traceback__)
    if isinstance(error, SpiritlevelError) or not frames:
        return text
    place = "/".join(pathlib.PurePath(frames[-1].filename).parts[-2:])
    return f"{text} ({place}, line {frames[-1].lineno})"


def rows_of(report: Report) -> tuple[MeasurementRow, ...]:
    """Every measurement of a report, whole network first."""
    rows = [row_of("", m) for m in report.values()]
    for layers in report.layers.values():
        rows += [row_of(layer, m) for layer, m in layers.items()]
    return tuple(rows)


def row_of(layer: str, m: Measurement) -> MeasurementRow:
    """One measurement of a report, as a row of the store."""
    return MeasurementRow(
        m.name, layer, m.value, m.stderr, m.data_stderr, m.exact, m.status.value, m.text
    )
