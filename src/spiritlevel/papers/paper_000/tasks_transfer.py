"""One network of paper 000, Fig. 7: trained on one data set, then three ways to another."""

from __future__ import annotations

import copy
import dataclasses

import torch
from torch import nn

from ...study.registry import read_task, task
from ...study.run_results import RunResult
from ...study.runs.measuring import complete
from ...study.runs.networks import NetworkRun, head_path
from ...study.runs.outcomes import DIVERGED
from ...study.runs.run_data import load_data
from ...study.runs.running import train
from ...study.settings.run import RunSettings
from ...study.settings.sections import DataSettings
from ..task_numbers import with_numbers
from .tasks_dynamics import SHARES, before_training, check_followed, moment_at, moments

LOW, HIGH, FROZEN = STRATEGIES = ("low", "high", "frozen")
FLATNESS, PEAK, ACCURACY, LOSS = (
    "task.flatness",
    "task.peak_flatness",
    "task.accuracy",
    "task.train_loss",
)
BEFORE = "task.pretrained_accuracy"


@dataclasses.dataclass(frozen=True)
class TransferArguments:
    """How the network is trained first, and the learning rate of each strategy after that."""

    pretrain: str = "mnist"  # "": the network comes with trained weights
    pretrain_samples: int = 2000
    pretrain_epochs: int = 5
    pretrain_lr: float = 0.01
    low: float = 1e-4
    high: float = 1e-2
    frozen: float = 1e-2


@task("tasks_000_transfer", arguments=TransferArguments)
def run(settings: RunSettings, device: str | torch.device = "cpu") -> RunResult:
    """Every number comes as NAME/STRATEGY; all start from the same weights and the same new head.

    The run that the store keeps (epochs, measures, checkpoint) is that of the last strategy.
    """
    arguments = read_task(settings, TransferArguments)
    check_followed(settings)
    pretrained, values = _pretrained(settings, arguments, device)
    for strategy in STRATEGIES:
        rate: float = getattr(arguments, strategy)
        result, adapted = _adapted(pretrained, strategy_settings(settings, strategy, rate), device)
        values |= {name.format(strategy): value for name, value in adapted.items()}
    return with_numbers(result, settings, values, device)


def strategy_settings(settings: RunSettings, strategy: str, lr: float) -> RunSettings:
    """The same run at the rate of a strategy; only the head learns where the backbone is frozen."""
    training = dataclasses.replace(settings.training, lr=lr)
    if strategy == FROZEN:
        training = dataclasses.replace(training, freeze="backbone")
    return dataclasses.replace(settings, training=training)


def copy_backbone(source: nn.Module, target: nn.Module) -> None:
    """All weights and statistics but those of the head, whose classes are others."""
    head = f"{head_path(target)}."
    body = {k: v for k, v in source.state_dict().items() if not k.startswith(head)}
    new_head = {k: v for k, v in target.state_dict().items() if k.startswith(head)}
    target.load_state_dict(body | new_head)


def _pretrained(
    settings: RunSettings, arguments: TransferArguments, device: str | torch.device
) -> tuple[nn.Module, dict[str, float]]:
    if not arguments.pretrain:
        return NetworkRun.start(settings, device).model, {}
    first = dataclasses.replace(
        settings,
        data=DataSettings(arguments.pretrain, arguments.pretrain_samples),
        training=dataclasses.replace(
            settings.training, epochs=arguments.pretrain_epochs, lr=arguments.pretrain_lr
        ),
        measure_every=None,
    )
    # The head of this network has the classes of these data.
    classes = {**settings.model.arguments, "classes": load_data(first).num_classes}
    first = dataclasses.replace(first, model=dataclasses.replace(first.model, arguments=classes))
    run = NetworkRun.start(first, device)
    train(run)
    return run.model, {BEFORE: run.history.epochs[-1].test_accuracy}


def _adapted(
    pretrained: nn.Module, settings: RunSettings, device: str | torch.device
) -> tuple[RunResult, dict[str, float]]:
    run = NetworkRun.start(settings, device)
    copy_backbone(pretrained, run.model)
    run.initial = copy.deepcopy(run.model.state_dict())
    start = before_training(run)
    train(run)
    result = complete(run)
    if run.history.outcome == DIVERGED:
        return result, {}
    seen = moments(run.history)
    values = {
        f"{PEAK}/{{}}": max(moment.flatness for moment in seen),
        f"{ACCURACY}/{{}}": seen[-1].row.test_accuracy,
        f"{LOSS}/{{}}": seen[-1].row.train_loss,
    }
    for share in SHARES:
        values[f"{FLATNESS}/{{}}/{share}"] = moment_at(share, start, seen).flatness
    return result, values
