"""One run from its settings to its result: the same bits each time on one machine."""

from __future__ import annotations

import copy
import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .hooks import BatchChanges
from .measuring import DIVERGED, build_model, complete, repeatable
from .results import EpochRow, RunResult
from .run_data import RunData, derived_generator, derived_seed, load_data
from .settings import RunSettings

EVALUATED = 1024  # samples at a time
OnEpoch = Callable[[int, int], None]  # epochs done, epochs at most


def run_one(
    settings: RunSettings, *, device: str | torch.device = "cpu", on_epoch: OnEpoch | None = None
) -> RunResult:
    """Train, follow, measure. Everything depends on `settings` alone."""
    start = time.perf_counter()
    with repeatable(settings), torch.random.fork_rng(devices=_cuda(device)):
        torch.manual_seed(derived_seed(settings.seed, "training"))  # of dropout and its like
        data = load_data(settings, device)
        model = build_model(settings, device)
        initial = copy.deepcopy(model.state_dict())
        epochs, outcome = train(model, data, settings, on_epoch=on_epoch)
        result = complete(
            settings, model, data, initial=initial, epochs=epochs, outcome=outcome, seconds=0.0
        )
    return with_seconds(result, time.perf_counter() - start)


def with_seconds(result: RunResult, seconds: float) -> RunResult:
    """The result with the time it took, known only at the end."""
    return dataclasses.replace(result, seconds=seconds)


def train(
    model: nn.Module, data: RunData, settings: RunSettings, *, on_epoch: OnEpoch | None = None
) -> tuple[list[EpochRow], str]:
    """Train until the stop rule or the last epoch; the rows of the epochs, and why it ended."""
    training = settings.training
    optimizer = make_optimizer(model, training)
    generator = derived_generator(settings.seed, "shuffling")
    change = BatchChanges(
        settings.interventions,
        num_classes=data.num_classes,
        generator=derived_generator(settings.seed, "batches"),
    )
    rows: list[EpochRow] = []
    for epoch in range(1, training["epochs"] + 1):
        model.train()
        order = torch.randperm(len(data.x), generator=generator).to(data.x.device)
        for batch in order.split(training["batch_size"]):
            x, y = change(data.x[batch], data.y[batch])
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        rows.append(
            EpochRow(
                epoch,
                *evaluate(model, data.x, data.y),
                *evaluate(model, data.test_x, data.test_y),
            )
        )
        if on_epoch is not None:
            on_epoch(epoch, training["epochs"])
        if outcome := ended(rows[-1], settings):
            return rows, outcome
    raise AssertionError("the last epoch ends a run")


def ended(row: EpochRow, settings: RunSettings) -> str:
    """Why training ends after this epoch; "" if it goes on."""
    stop = settings.stop
    if not math.isfinite(row.train_loss):
        return DIVERGED
    if row.train_loss <= stop.get("train_loss", -math.inf):
        return "train_loss"
    if row.train_accuracy >= stop.get("train_accuracy", math.inf):
        return "train_accuracy"
    return "epochs" if row.epoch >= settings.training["epochs"] else ""


def make_optimizer(model: nn.Module, training: Mapping[str, Any]) -> torch.optim.Optimizer:
    """As torch has it."""
    common = {"lr": training["lr"], "weight_decay": training["weight_decay"]}
    if training["optimizer"] == "sgd":
        return torch.optim.SGD(model.parameters(), momentum=training["momentum"], **common)
    kinds = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    return kinds[training["optimizer"]](model.parameters(), **common)


@torch.no_grad()
def evaluate(model: nn.Module, x: Tensor, y: Tensor) -> tuple[float, float]:
    """Mean loss and accuracy, in eval mode."""
    model.eval()
    loss = torch.zeros((), dtype=torch.float64, device=x.device)
    correct = torch.zeros((), dtype=torch.int64, device=x.device)
    for part, targets in zip(x.split(EVALUATED), y.split(EVALUATED), strict=True):
        outputs = model(part)
        loss += F.cross_entropy(outputs, targets, reduction="none").double().sum()
        correct += (outputs.argmax(dim=1) == targets).sum()
    return float(loss) / len(x), float(correct) / len(x)


def _cuda(device: str | torch.device) -> list[torch.device]:
    place = torch.device(device)
    return [place] if place.type == "cuda" else []
