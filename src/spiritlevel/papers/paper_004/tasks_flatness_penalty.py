"""One network of paper 004: a perceptron trained with a penalty on Tr(H²)/B."""

from __future__ import annotations

import dataclasses
import math
import statistics
import time

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...study.checkpoints import checkpoint_bytes
from ...study.registry import task
from ...study.runs.batch_changes import BatchChanges
from ...study.runs.networks import build_model
from ...study.runs.results import EpochRow, RunResult
from ...study.runs.run_data import RunData, derived_generator, load_data
from ...study.runs.running import evaluate
from ...study.runs.schedules import rate_factor
from ...study.runs.tasks import task_result
from ...study.settings.run import RunSettings
from ...study.settings.task_arguments import read_task
from ...training.penalties.flatness_penalty import FlatnessPenalty

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
    data = load_data(settings, device)
    model = build_model(settings, device)
    epochs, flatness, seconds = _train(model, data, settings, arguments)
    values = {
        FLATNESS: statistics.fmean(flatness),
        LAST: statistics.fmean(flatness[-(len(flatness) // len(epochs)) :]),
        BEST: max(row.test_accuracy for row in epochs),
        SECONDS: seconds,
    }
    return task_result(
        settings,
        values,
        device=device,
        outcome="epochs",
        epochs=tuple(epochs),
        checkpoint=checkpoint_bytes(model),
        num_train=len(data.x),
        num_test=len(data.test_x),
    )


def _train(
    model: nn.Module, data: RunData, settings: RunSettings, arguments: PenaltyArguments
) -> tuple[list[EpochRow], list[float], float]:
    """Rows of the epochs, Tr(H²)/B of the steps that computed it, and seconds of training.

    Where the weight is 0 the penalty's value is only looked at, and the time for that is no part
    of the training.
    """
    training = settings.training
    optimizer = torch.optim.SGD(model.parameters(), lr=training.lr, momentum=training.momentum)
    order = derived_generator(settings.seed, "shuffling")
    penalty = FlatnessPenalty(
        model,
        weight=arguments.weight,
        probes=arguments.probes,
        every=arguments.every,
        generator=derived_generator(settings.seed, "probes"),
    )
    change = BatchChanges(
        settings.interventions,
        num_classes=data.num_classes,
        generator=derived_generator(settings.seed, "batches"),
    )
    an_epoch = math.ceil(len(data.x) / training.batch_size)
    rows: list[EpochRow] = []
    flatness: list[float] = []
    seconds, done = 0.0, 0
    for epoch in range(1, training.epochs + 1):
        model.train()
        drawn = torch.randperm(len(data.x), generator=order).to(data.x.device)
        for part in drawn.split(training.batch_size):
            due, started = penalty.due, clock(data.x)
            x, y = change(data.x[part], data.y[part])
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
        rows.append(EpochRow(epoch, *train, *evaluate(model, data.test_x, data.test_y)))
    return rows, flatness, seconds


def clock(on: Tensor) -> float:
    """Seconds; a GPU works on by itself, so it is waited for."""
    if on.is_cuda:
        torch.cuda.synchronize(on.device)
    return time.perf_counter()
