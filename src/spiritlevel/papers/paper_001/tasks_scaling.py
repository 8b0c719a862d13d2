"""One network of paper 001, Fig. 1: trained, then its weights scaled, then measured again."""

from __future__ import annotations

import copy
import dataclasses

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ...study.registry import read_task, task
from ...study.run_results import MeasurementRow, RunResult
from ...study.runs.measuring import measure_network
from ...study.runs.networks import NetworkRun
from ...study.runs.running import evaluate, train
from ...study.settings.run import RunSettings
from ...symmetries.named_layers import rescale_layers
from ..task_numbers import network_result

PLAIN, ALL, PAIR = "plain", "all", "pair"
TRAIN, TEST = "task.train_accuracy", "task.test_accuracy"
WEIGHTED = (nn.Conv2d, nn.Linear)


@dataclasses.dataclass(frozen=True)
class ScalingArguments:
    """What the weights are multiplied by."""

    factor: float = 10.0


@task("tasks_scaling", arguments=ScalingArguments)
def run(settings: RunSettings, device: str | torch.device = "cpu") -> RunResult:
    """Every number comes as NAME/plain, NAME/all (all weights) and NAME/pair (one up, one down)."""
    arguments = read_task(settings, ScalingArguments)
    run = NetworkRun.start(settings, device)
    train(run)
    data = run.data
    rows: list[MeasurementRow] = []
    accuracies: dict[str, float] = {}
    for name, variant in variants(run.model.eval(), arguments.factor).items():
        scaled = dataclasses.replace(run, model=variant)
        rows += [
            dataclasses.replace(row, measure=f"{row.measure}/{name}")
            for row in measure_network(scaled, settings.measures)
            if row.layer == ""
        ]
        accuracies[f"{TRAIN}/{name}"] = evaluate(variant, data.x, data.y)[1]
        accuracies[f"{TEST}/{name}"] = evaluate(variant, data.test_x, data.test_y)[1]
    return network_result(run, accuracies, device=device, measured=rows)


def variants(model: nn.Module, factor: float) -> dict[str, nn.Module]:
    """The network as it is, with all weights scaled, and with two layers scaled against each other.

    The last only where two layers follow each other with nothing but a ReLU and pooling between
    them: there the function itself stays the same.
    """
    networks = {PLAIN: model, ALL: scaled_weights(model, factor)}
    if isinstance(getattr(model, "conv2", None), nn.Conv2d) and not hasattr(model, "bn1"):
        networks[PAIR] = rescale_layers(model, "conv1", "conv2", factor)
    return networks


@torch.no_grad()
def scaled_weights(model: nn.Module, factor: float) -> nn.Module:
    """A copy of a ReLU network with all weights times `factor`; its outputs keep their proportions.

    If the inputs of a layer have grown by s, its outputs grow by s × factor, so its bias is
    multiplied by that. A BatchNorm's running statistics are scaled like its inputs, and its weights
    and biases are multiplied like all others. Layers must be listed in the order of their use.
    """
    scaled = copy.deepcopy(model)
    growth = 1.0
    for module in scaled.modules():
        if isinstance(module, WEIGHTED):
            growth *= factor
            module.weight.mul_(factor)
            if module.bias is not None:
                module.bias.mul_(growth)
        elif isinstance(module, _BatchNorm):
            _follow(module, growth)
            module.weight.mul_(factor)
            module.bias.mul_(factor)
            growth = factor
    return scaled


def _follow(norm: _BatchNorm, growth: float) -> None:
    """Scale the running statistics to match inputs that have grown, eps included."""
    mean, variance = norm.running_mean, norm.running_var
    assert isinstance(mean, Tensor)
    assert isinstance(variance, Tensor)
    mean.mul_(growth)
    variance.add_(norm.eps).mul_(growth**2).sub_(norm.eps)
