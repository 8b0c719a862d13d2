"""Training of paper 001 looked at along the way: after parts of one epoch, or after several."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...errors import SpiritlevelError
from ...study.checkpoints import checkpoint_bytes
from ...study.registry import task
from ...study.runs.ending import DIVERGED
from ...study.runs.epochs import Epochs
from ...study.runs.measuring import measure_network
from ...study.runs.network_run import NetworkRun
from ...study.runs.results import EpochRow, MeasurementRow, RunResult
from ...study.runs.run_data import RunData
from ...study.runs.running import evaluate
from ...study.runs.tasks import task_result
from ...study.settings.run import RunSettings
from ...study.settings.task_arguments import read_task

STEP, TRAIN, TEST = "task.step", "task.train_accuracy", "task.test_accuracy"
SIGNAL = "task.signal_norm"


@dataclasses.dataclass(frozen=True)
class PointsArguments:
    """How often the network is looked at, and how it reads images."""

    points: int = 10
    levels: int = 0  # of grey, each a token; 0 leaves images as they are


@task("tasks_001_points", arguments=PointsArguments)
def run(settings: RunSettings, device: str | torch.device = "cpu") -> RunResult:
    """Every number comes as NAME/1 to NAME/points, at equal numbers of steps from each other.

    With `levels` each image becomes a text, one token per pixel, for networks that read texts.
    """
    arguments = read_task(settings, PointsArguments)
    run = NetworkRun.start(settings, device)
    run.data = _as_texts(run.data, arguments.levels)
    model, data = run.model, run.data
    rows: list[MeasurementRow] = []
    numbers: dict[str, float] = {}
    outcome, row = "epochs", None
    for point, step in enumerate(_trained(run, arguments.points), start=1):
        train = evaluate(model, data.x, data.y)
        test = evaluate(model, data.test_x, data.test_y)
        row = EpochRow(point, *train, *test)
        if not math.isfinite(row.train_loss):
            outcome = DIVERGED
            break
        numbers |= {
            f"{STEP}/{point}": step,
            f"{TRAIN}/{point}": row.train_accuracy,
            f"{TEST}/{point}": row.test_accuracy,
            f"{SIGNAL}/{point}": signal_norm(model, data, settings),
        }
        rows += [
            dataclasses.replace(each, measure=f"{each.measure}/{point}")
            for each in measure_network(run, settings.measures)
            if each.layer == ""
        ]
    assert row is not None
    last = dataclasses.replace(row, epoch=settings.training.epochs)
    result = task_result(
        settings,
        numbers,
        device=device,
        outcome=outcome,
        epochs=(last,),
        checkpoint=checkpoint_bytes(model),
        num_train=len(data.x),
        num_test=len(data.test_x),
    )
    return dataclasses.replace(result, measurements=result.measurements + tuple(rows))


def _trained(run: NetworkRun, points: int) -> Iterator[int]:
    """Train, and stop at each point to be looked at; gives the steps done so far."""
    epochs, training = run.settings.training.epochs, Epochs(run)
    steps = epochs * training.num_batches
    if not 1 <= points <= steps:
        raise SpiritlevelError(
            f"The study's task.points must be from 1 to the {steps} steps of training. "
            f"Got {points}. Train for more epochs, or look at fewer points."
        )
    due = {(point * steps) // points for point in range(1, points + 1)}
    done = 0
    for _ in range(epochs):
        for x, y in training.batches():
            training.step.start_epoch()  # looking at the network left it in eval mode
            training.step(x, y)
            done += 1
            if done in due:
                training.step.end_epoch()
                yield done


@torch.no_grad()
def signal_norm(model: nn.Module, data: RunData, settings: RunSettings) -> float:
    """Mean of ‖p − y‖, the gradient in the outputs with which backpropagation starts.

    On the samples that are measured on.
    """
    samples = settings.measure_options.samples
    x, y = data.x[:samples], data.y[:samples]
    outputs = model.eval()(x).double()
    wanted = F.one_hot(y, outputs.shape[1])
    return float((outputs.softmax(dim=1) - wanted).norm(dim=1).mean())


def _as_texts(data: RunData, levels: int) -> RunData:
    if not levels:
        return data
    return dataclasses.replace(
        data, x=as_tokens(data.x, levels), test_x=as_tokens(data.test_x, levels)
    )


def as_tokens(images: Tensor, levels: int) -> Tensor:
    """A token a pixel, (N, pixels), from 1 for black to levels + 1 for white; 0 is padding.

    >>> as_tokens(torch.tensor([[[[0.0, 1.0]]]]), 16)
    tensor([[ 1, 17]])
    """
    if not images.is_floating_point() or images.dim() != 4:
        raise SpiritlevelError(
            "The study's task.levels turns images into texts. The data are no images: "
            f"{images.dtype} of shape {tuple(images.shape)}. Set levels to 0 for token ids."
        )
    return (images.flatten(1).clamp(0, 1) * levels).round().long() + 1


def at_points(row: Any, name: str) -> list[float]:
    """NAME/1, NAME/2, … of a run, as far as it came."""
    values: list[float] = []
    while row.get(f"{name}/{len(values) + 1}") is not None:
        values.append(row[f"{name}/{len(values) + 1}"])
    return values


def steps_at(rows: Sequence[Any], points: int) -> list[float]:
    """After how many steps the points lay; nan for those that no run came to."""
    return [
        next((row[key] for row in rows if row.get(key) is not None), math.nan)
        for key in (f"{STEP}/{point}" for point in range(1, points + 1))
    ]
