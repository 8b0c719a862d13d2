"""One network of paper 004: a perceptron trained with a penalty on Tr(H²)/B."""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...study.registry import read_task, task
from ...study.run_results import EpochRow, RunResult
from ...study.runs.epochs import BatchChanges, random_states, restore_random_states
from ...study.runs.networks import NetworkRun
from ...study.runs.outcomes import ALL_EPOCHS
from ...study.runs.run_data import derived_generator
from ...study.runs.running import evaluate
from ...study.runs.steps import rate_factor
from ...study.runs.training_snapshots import current
from ...study.settings.run import RunSettings
from ...training.penalties.flatness_penalty import FlatnessPenalty
from ..task_numbers import network_result

FLATNESS, LAST = "task.average_flatness", "task.last_flatness"
BEST, SECONDS = "task.best_accuracy", "task.training_seconds"


@dataclasses.dataclass(frozen=True)
class PenaltyArguments:
    """Of the penalty, and the norm at which gradients are clipped."""

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
    """Seconds; a GPU works on by itself, so it is waited for."""
    if on.is_cuda:
        torch.cuda.synchronize(on.device)
    return time.perf_counter()
