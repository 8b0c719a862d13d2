"""What the tasks of the papers leave of a network: its training, and numbers of their own."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import torch

from ..study.checkpoints import checkpoint_bytes
from ..study.run_results import EpochRow, MeasurementRow, RunResult
from ..study.runs.networks import NetworkRun
from ..study.runs.tasks import task_result
from ..study.settings.run import RunSettings


def network_result(
    run: NetworkRun,
    numbers: Mapping[str, float],
    *,
    device: str | torch.device,
    outcome: str = "",
    epochs: Sequence[EpochRow] | None = None,
    measured: Iterable[MeasurementRow] = (),
) -> RunResult:
    """The network with its numbers; how it ended and its epochs are those of its history."""
    result = task_result(
        run.settings,
        numbers,
        device=device,
        outcome=outcome or run.history.outcome,
        epochs=tuple(run.history.epochs if epochs is None else epochs),
        checkpoint=checkpoint_bytes(run.model),
        num_train=len(run.data.x),
        num_test=len(run.data.test_x),
    )
    return dataclasses.replace(result, measurements=result.measurements + tuple(measured))


def with_numbers(
    result: RunResult,
    settings: RunSettings,
    numbers: Mapping[str, float],
    device: str | torch.device,
) -> RunResult:
    """A result with numbers behind what was measured."""
    more = task_result(settings, numbers, device=device)
    return dataclasses.replace(result, measurements=result.measurements + more.measurements)
