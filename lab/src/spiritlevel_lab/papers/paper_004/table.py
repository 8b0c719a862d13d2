"""Paper 004, its table: accuracy, flatness and time for five weights of the Tr(H²)/B penalty.

The task trains one perceptron with a penalty on Tr(H²)/B.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spiritlevel.records.content import Figure
from spiritlevel.training.penalties.flatness_penalty import FlatnessPenalty

from ...claims.contrasts import factor_by_seed, line
from ...claims.experiment import Experiment, Outcome, Row
from ...claims.findings import above, below, every, verdict
from ...claims.numbers import IntervalEstimate
from ...claims.rows import column
from ...population.registry import read_task, task
from ...population.run_results import EpochRow, RunResult
from ...population.runs.epochs import BatchChanges, random_states, restore_random_states
from ...population.runs.networks import NetworkRun
from ...population.runs.outcomes import ALL_EPOCHS
from ...population.runs.run_data import derived_generator
from ...population.runs.running import evaluate
from ...population.runs.steps import rate_factor
from ...population.runs.tasks import network_result
from ...population.runs.training_snapshots import current
from ...population.settings.run import RunSettings
from ..recipes.recipe import Recipe

FLATNESS, LAST = "task.average_flatness", "task.last_flatness"
BEST, SECONDS = "task.best_accuracy", "task.training_seconds"


@dataclasses.dataclass(frozen=True)
class PenaltyArguments:
    """Arguments of the penalty, and the norm at which gradients are clipped."""

    weight: float = 0.0
    clip: float = 1.0
    probes: int = 1
    every: int = 1


@task("tasks_flatness_penalty", arguments=PenaltyArguments)
def run(settings: RunSettings, device: str | torch.device = "cpu") -> RunResult:
    """The seed settles initial weights, batches and probes, whatever the weight of the penalty."""
    arguments = read_task(settings, PenaltyArguments)
    run = NetworkRun.start(settings, device)
    flatness, seconds = _train(run, arguments)
    epochs = run.history.epochs
    values = {
        FLATNESS: statistics.fmean(flatness),
        LAST: statistics.fmean(flatness[-(len(flatness) // len(epochs)) :]),
        BEST: max(row.test_accuracy for row in epochs),
        SECONDS: seconds,
    }
    return network_result(run, values, device=device)


def _train(run: NetworkRun, arguments: PenaltyArguments) -> tuple[list[float], float]:
    """Tr(H²)/B of the steps that computed it, and seconds of training; rows go into the history.

    Where the weight is 0 the penalty's value is only looked at, and the time for that is no part
    of the training.
    """
    model, data, settings, training = run.model, run.data, run.settings, run.settings.training
    saved = current().training(run)
    optimizer = torch.optim.SGD(model.parameters(), lr=training.lr, momentum=training.momentum)
    order = derived_generator(settings.seed, "shuffling")
    penalty = FlatnessPenalty(
        model,
        weight=arguments.weight,
        probes=arguments.probes,
        every=arguments.every,
        generator=derived_generator(settings.seed, "probes"),
    )
    changes = derived_generator(settings.seed, "batches")
    change = BatchChanges(settings.interventions, num_classes=data.num_classes, generator=changes)
    an_epoch = math.ceil(len(data.x) / training.batch_size)
    flatness: list[float] = []
    seconds, done = 0.0, saved.epoch * an_epoch
    parts: dict[str, Any] = {"network": model, "optimizer": optimizer, "penalty": penalty}
    generators = {"order": order, "change": changes}

    def state() -> dict[str, Any]:
        states: dict[str, Any] = {name: part.state_dict() for name, part in parts.items()}
        states |= {name: generator.get_state() for name, generator in generators.items()}
        states |= random_states(data.x.device)
        return states | {"flatness": list(flatness), "seconds": seconds}

    if (last := saved.state) is not None:
        for name, part in parts.items():
            part.load_state_dict(last[name])
        for name, generator in generators.items():
            generator.set_state(last[name])
        restore_random_states(last, data.x.device)
        flatness, seconds = last["flatness"], last["seconds"]
    while not run.history.outcome:
        epoch = saved.epoch + 1
        model.train()
        drawn = torch.randperm(len(data.x), generator=order).to(data.x.device)
        for batch in drawn.split(training.batch_size):
            due, started = penalty.due, clock(data.x)
            x, y = change(data.x[batch], data.y[batch])
            for group in optimizer.param_groups:
                group["lr"] = training.lr * rate_factor(training, step=done, steps=an_epoch)
            done += 1
            optimizer.zero_grad()
            with penalty.shared_forward():
                loss = F.cross_entropy(model(x), y)
            between = clock(x)
            term = penalty(x, y, loss=loss)
            idle = clock(x) - between if arguments.weight == 0.0 else 0.0
            (loss + term).backward()
            nn.utils.clip_grad_norm_(model.parameters(), arguments.clip)
            optimizer.step()
            seconds += clock(x) - started - idle
            if due and penalty.value is not None:
                flatness.append(float(penalty.value))
        train = evaluate(model, data.x, data.y)
        row = EpochRow(epoch, *train, *evaluate(model, data.test_x, data.test_y))
        run.history.add(row, None)
        run.history.outcome = ALL_EPOCHS if epoch == training.epochs else ""
        saved.after_epoch(state)
    return flatness, seconds


def clock(on: Tensor) -> float:
    """The time in seconds; a GPU works on by itself, so it is waited for."""
    if on.is_cuda:
        torch.cuda.synchronize(on.device)
    return time.perf_counter()


WEIGHT, TIME = "task.weight", "time over λ = 0"
MODERATE = 0.01  # the weight the paper recommends
SMALLEST = 1e-4  # where 0 is drawn on a logarithmic axis


def analyse(experiment: Experiment, rows: Sequence[Row]) -> Outcome:
    """Does flatness fall with λ, and is the accuracy kept at the recommended weight?"""
    unpenalized = column([row for row in rows if row[WEIGHT] == 0.0], SECONDS)
    unit = statistics.median(unpenalized) if unpenalized else math.nan
    recipe = Recipe(experiment, [{**row, TIME: row[SECONDS] / unit} for row in rows])
    change, flatness = recipe.numbers["change"], recipe.each["flatness"]
    values = [each.value for each in flatness.values()]
    falls = all(a > b for a, b in itertools.pairwise(values)) if len(values) > 1 else None
    groups = recipe.runs.groups
    findings = [
        every(
            "flatness falls with every step of λ (ratio to the step before, paired by seed)",
            [
                below(f"to {after:g}", factor_by_seed(groups[before], groups[after], FLATNESS), 1.0)
                for before, after in itertools.pairwise(groups)
            ],
        ),
        above(f"the final accuracy at λ = {MODERATE:g} is kept", change),
    ]
    cost = recipe.each["time"].get(MODERATE) if unpenalized else None
    theirs = experiment.paper_values[f"{TIME}, λ = {MODERATE:g}"]
    return dataclasses.replace(
        recipe.outcome(said=_conclusion(falls, change, cost, theirs)),
        findings=findings,
        agrees=verdict(findings),
        figure=_figure(flatness),
    )


def _conclusion(
    falls: bool | None, change: IntervalEstimate, cost: IntervalEstimate | None, theirs: float
) -> str:
    """What the networks show that are there; those of some weights may not be trained yet."""
    said = []
    if falls is not None:
        verb = "falls" if falls else "does not fall"
        said.append(f"the average of Tr(H²)/B {verb} with every step of λ")
    if change.n:
        said.append(
            f"at λ = {MODERATE:g} the final accuracy changes by {change} (paired by seed, n = "
            f"{change.n})"
        )
    if cost is not None:
        said.append(
            f"training takes {cost} times as long as without the penalty, not {theirs:.0f} times"
        )
    if not said:
        return "These networks show no part of it yet."
    text = ", and ".join(filter(None, ("; ".join(said[:-1]), said[-1])))
    return f"{text[0].upper()}{text[1:]}."


def _figure(flatness: Mapping[float, IntervalEstimate]) -> Figure:
    drawn = line("here", [max(weight, SMALLEST) for weight in flatness], list(flatness.values()))
    label = f"λ (0 is drawn at {SMALLEST:.4f})"
    return Figure(label, "average Tr(H²)/B", [drawn], log_x=True, log_y=True)
