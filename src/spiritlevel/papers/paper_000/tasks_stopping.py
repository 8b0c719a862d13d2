"""One network of paper 000, Table 7: trained to the end, and where each rule would have stopped it.

A rule changes nothing about training before it stops, so one training serves all four: they are
compared on the same epochs of the same network.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import get_args

import torch

from ...errors import SpiritlevelError
from ...study.registry import read_task, task
from ...study.run_results import RunResult
from ...study.runs.measuring import complete
from ...study.runs.networks import NetworkRun
from ...study.runs.outcomes import DIVERGED
from ...study.runs.running import train
from ...study.settings.run import RunSettings
from ...training.stopping import FlatnessStopping, Rule
from ..task_numbers import with_numbers
from .tasks_dynamics import Moment, check_followed, moments

RULES: tuple[Rule, ...] = get_args(Rule)
STOPPED, EPOCHS, ACCURACY, FLATNESS = (
    "task.stopped",
    "task.epochs",
    "task.accuracy",
    "task.flatness",
)


@dataclasses.dataclass(frozen=True)
class StoppingArguments:
    """The numbers of all four rules; the defaults are the paper's."""

    patience: int = 10
    tolerance: float = 0.02


@task("tasks_000_stopping", arguments=StoppingArguments)
def run(settings: RunSettings, device: str | torch.device = "cpu") -> RunResult:
    """Every number comes as NAME/RULE: whether it stopped, after how many epochs, what it had."""
    arguments = read_task(settings, StoppingArguments)
    check_followed(settings)
    if settings.data.validation is None:
        raise SpiritlevelError(
            "The study's data.validation must be given for this task: two of its rules look at the "
            "loss there. Got none. Add for example `validation: 0.1` to data."
        )
    run = NetworkRun.start(settings, device)
    train(run)
    result = complete(run)
    if run.history.outcome == DIVERGED:
        return result
    return with_numbers(result, settings, stops(moments(run.history), arguments), device)


def stops(seen: Sequence[Moment], arguments: StoppingArguments) -> dict[str, float]:
    """For each rule the epoch at which it stops, else the last one, and the network there."""
    values: dict[str, float] = {}
    for rule in RULES:
        stopping = FlatnessStopping(
            rule, patience=arguments.patience, tolerance=arguments.tolerance
        )
        end = first_stop(seen, stopping)
        at = seen[-1] if end is None else end
        values |= {
            f"{STOPPED}/{rule}": float(end is not None),
            f"{EPOCHS}/{rule}": float(at.row.epoch),
            f"{ACCURACY}/{rule}": at.row.test_accuracy,
            f"{FLATNESS}/{rule}": at.flatness,
        }
    return values


def first_stop(seen: Sequence[Moment], rule: FlatnessStopping) -> Moment | None:
    """Where the rule stops; None if it never does."""
    for moment in seen:
        loss = moment.row.validation_loss
        if rule.update(epoch=moment.row.epoch, loss=loss, flatness=moment.flatness):
            return moment
    return None
