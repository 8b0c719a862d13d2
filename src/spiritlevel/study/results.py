"""What a run leaves behind, in plain types, so that it can travel between processes."""

from __future__ import annotations

import dataclasses

from .._core import Measurement, Report


@dataclasses.dataclass(frozen=True)
class EpochRow:
    """Loss and accuracy on all training and test data after an epoch."""

    epoch: int
    train_loss: float
    train_accuracy: float
    test_loss: float
    test_accuracy: float


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
class RunResult:
    """A finished run."""

    outcome: str
    epochs: tuple[EpochRow, ...]
    measurements: tuple[MeasurementRow, ...]
    checkpoint: bytes
    num_train: int
    num_test: int
    seconds: float
    machine: str  # JSON


def rows_of(report: Report) -> tuple[MeasurementRow, ...]:
    """Every measurement of a report, whole network first."""
    found = [_row("", m) for m in report.values()]
    found += [_row(layer, m) for rows in report.layers.values() for layer, m in rows.items()]
    return tuple(found)


def _row(layer: str, m: Measurement) -> MeasurementRow:
    return MeasurementRow(
        m.name, layer, m.value, m.stderr, m.data_stderr, m.exact, m.status.value, m.text
    )
