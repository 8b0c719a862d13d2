"""Training of paper 001 looked at along the way: after parts of one epoch, or after several."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spiritlevel.ground.errors import SpiritlevelError

from ...population.registry import read_task, task
from ...population.run_results import (
    EpochMeasurementRow,
    EpochRow,
    History,
    MeasurementRow,
    RunResult,
)
from ...population.runs.epochs import Epochs
from ...population.runs.networks import NetworkRun
from ...population.runs.outcomes import ALL_EPOCHS, DIVERGED
from ...population.runs.run_data import RunData
from ...population.runs.running import evaluate, measure_network
from ...population.runs.tasks import network_result, number_row
from ...population.runs.training_snapshots import current
from ...population.settings.run import RunSettings

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
    steps = _steps(run, arguments.points)
    _train(run, steps)
    history = run.history
    return network_result(
        run,
        _numbers(history, steps),
        map(_at_its_point, history.measurements),
        device=device,
        epochs=[dataclasses.replace(history.epochs[-1], epoch=settings.training.epochs)],
    )


def _steps(run: NetworkRun, points: int) -> list[int]:
    """After how many batches the network is looked at."""
    training = run.settings.training
    steps = training.epochs * math.ceil(len(run.data.x) / training.batch_size)
    if not 1 <= points <= steps:
        raise SpiritlevelError(
            f"The study's task.points must be from 1 to the {steps} steps of training. "
            f"Got {points}. Train for more epochs, or look at fewer points."
        )
    return [(point * steps) // points for point in range(1, points + 1)]


def _train(run: NetworkRun, steps: Sequence[int]) -> None:
    """Train, and look at the network after these steps; a point takes the place of an epoch."""
    saved, training = current().training(run), Epochs(run)
    if saved.state is not None:
        training.restore(saved.state)
    history, done = run.history, saved.epoch * training.num_batches
    while not history.outcome:
        for x, y in training.batches():
            training.step.start_epoch()  # looking at the network left it in eval mode
            training.step(x, y)
            done += 1
            if done in steps:
                training.step.end_epoch()
                _look(run, steps.index(done) + 1)
            if history.outcome == DIVERGED:
                break
        else:
            history.outcome = ALL_EPOCHS if done == steps[-1] else ""
        saved.after_epoch(training.state)


def _look(run: NetworkRun, point: int) -> None:
    """Add to the history what there is to see at a point."""
    data, history = run.data, run.history
    train = evaluate(run.model, data.x, data.y)
    row = EpochRow(point, *train, *evaluate(run.model, data.test_x, data.test_y))
    if not math.isfinite(row.train_loss):
        history.add(row, None)
        history.outcome = DIVERGED
        return
    signal = number_row(SIGNAL, signal_norm(run.model, data, run.settings))
    measured = measure_network(run, run.settings.measures)
    history.add(row, [signal, *(each for each in measured if each.layer == "")])


def _numbers(history: History, steps: Sequence[int]) -> dict[str, float]:
    """Step and accuracies at every point at which the loss was a number."""
    numbers = {}
    for step, row in zip(steps, history.epochs, strict=False):
        if math.isfinite(row.train_loss):
            numbers[f"{STEP}/{row.epoch}"] = float(step)
            numbers[f"{TRAIN}/{row.epoch}"] = row.train_accuracy
            numbers[f"{TEST}/{row.epoch}"] = row.test_accuracy
    return numbers


def _at_its_point(row: EpochMeasurementRow) -> MeasurementRow:
    """A number at a point as one of the whole run, named NAME/POINT."""
    fields = vars(row) | {"measure": f"{row.measure}/{row.epoch}"}
    return MeasurementRow(**{key: value for key, value in fields.items() if key != "epoch"})


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
