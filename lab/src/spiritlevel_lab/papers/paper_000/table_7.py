"""Paper 000, Table 7: stop by the loss, by flatness, by both, or by the trend of flatness.

The task trains one network to the end and notes where each rule would have stopped it. A rule
changes nothing about training before it stops, so one training serves all four: they are compared
on the same epochs of the same network.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import get_args

import torch

from spiritlevel.ground.errors import SpiritlevelError
from spiritlevel.training.stopping import FlatnessStopping, Rule

from ...claims.experiment import Experiment, Outcome, Row
from ...claims.findings import Finding, fact, verdict
from ...population.registry import read_task, task
from ...population.run_results import RunResult
from ...population.runs.networks import NetworkRun
from ...population.runs.outcomes import DIVERGED
from ...population.runs.running import complete, train
from ...population.runs.tasks import task_result
from ...population.settings.run import RunSettings
from ..recipes.recipe import outcome
from .tasks_dynamics import Moment, check_followed, moments

RULES: tuple[Rule, ...] = get_args(Rule)
STOPPED, EPOCHS, ACCURACY, FLATNESS = (
    "task.stopped",
    "task.epochs",
    "task.accuracy",
    "task.flatness",
)


def analyse(experiment: Experiment, rows: Sequence[Row]) -> Outcome:
    """The rule on flatness against that on the loss; that it stops no run comes first."""
    found = outcome(experiment, rows, when=_when(rows, "trend"))
    findings = [_never([row[f"{STOPPED}/flatness"] == 1 for row in rows]), *found.findings]
    return dataclasses.replace(found, findings=findings, agrees=verdict(findings))


def _never(fired: Sequence[bool]) -> Finding:
    part = "the 2 % rule on flatness stops no run"
    if not fired:  # any statement is true of no runs
        return Finding(part, "undecided", "there is no run")
    return fact(part, not any(fired), f"stopped {sum(fired)} of {len(fired)} runs")


def _when(rows: Sequence[Row], rule: str) -> str:
    """At which epochs the rule stopped; runs that it did not stop do not count."""
    stopped = [row[f"{EPOCHS}/{rule}"] for row in rows if row[f"{STOPPED}/{rule}"] == 1]
    if not stopped:
        return ""
    first, last = min(stopped), max(stopped)
    return f", at epoch {first:g}" if first == last else f", between epochs {first:g} and {last:g}"


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
    more = task_result(settings, stops(moments(run.history), arguments), device=device)
    return result.with_more(more.measurements)


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
