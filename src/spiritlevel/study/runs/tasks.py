"""Runs that do something other than train one network and measure it.

    def separate(settings, device):
        clouds = ...settings.task.arguments["separation"]...settings.seed...
        return task_result(settings, {"kappa": kappa, "representativeness": value})

A study names it with `task: {name: "my_module:separate", separation: 2.0}`; the grid varies
"task.separation". The result is stored, resumed and exported like any other.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import torch

from ...errors import SpiritlevelError
from ...results import Measurement, Report, Status
from ..registry import find_task
from ..run_results import MeasurementRow, RunResult, row_of, rows_of
from ..settings.run import RunSettings
from .machine import machine
from .outcomes import TASK_DONE

OF_THE_RUN = ("outcome", "num_train", "num_test", "attempt", "seconds", "machine", "error")
OF_A_ROW = ("run", "status", "seed", "epoch", *OF_THE_RUN)  # whatever the study


def run_task(settings: RunSettings, device: str | torch.device) -> RunResult:
    """The result of the run's task; what the task did not fill in is filled in here."""
    assert settings.task is not None
    name = settings.task.name
    result = find_task(name)(settings, device)
    if not isinstance(result, RunResult):
        raise SpiritlevelError(
            f"The study's task {name!r} must return a RunResult. Got {type(result).__name__}. "
            "spiritlevel.study.task_result makes one of names and numbers."
        )
    _check_names(name, result, settings)
    return dataclasses.replace(
        result, machine=result.machine or machine(device, settings.training.threads)
    )


def _check_names(task: str, result: RunResult, settings: RunSettings) -> None:
    """A number must not hide what a row of the study has under the same name."""
    taken = {*OF_A_ROW, *settings.axes}
    for each in result.measurements:
        if each.measure in taken:
            what = "a setting" if each.measure in settings.axes else "a column of every study"
            raise SpiritlevelError(
                f"The study's task {task!r} must give its numbers names of their own. Got "
                f"{each.measure!r}, which is already the name of {what}. Rename it, for example "
                f"'final_{each.measure}'."
            )


def task_result(
    settings: RunSettings,
    values: Mapping[str, float | Measurement] | Report,
    *,
    device: str | torch.device = "cpu",
    outcome: str = TASK_DONE,
    num_train: int = 0,
    num_test: int = 0,
    **more: Any,
) -> RunResult:
    """A run that ended with these values, by name; a report goes in with all of its layers.

    Args:
        settings: of the run.
        values: plain numbers, which count as exact, or measurements with their errors.
        device: on which it ran.
        outcome: how it ended, in a word.
        num_train: the number of training samples, if there are any.
        num_test: the number of test samples, if there are any.
        more: other fields of RunResult: epochs, epoch_measurements, checkpoint.
    """
    if isinstance(values, Report):
        rows = rows_of(values)
    else:
        rows = tuple(number_row(name, value) for name, value in values.items())
    fields = {"epochs": (), "checkpoint": b""} | more
    return RunResult(
        outcome=outcome,
        measurements=rows,
        num_train=num_train,
        num_test=num_test,
        seconds=0.0,
        machine=machine(device, settings.training.threads),
        **fields,
    )


def number_row(name: str, value: float | Measurement) -> MeasurementRow:
    """A number of the whole network under a name; a plain one counts as exact."""
    if isinstance(value, Measurement):
        return dataclasses.replace(row_of("", value), measure=name)
    status = Status.OK if math.isfinite(value) else Status.NONFINITE
    return MeasurementRow(name, "", float(value), None, None, True, status.value, "")
