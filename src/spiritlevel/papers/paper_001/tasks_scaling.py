"""One network of paper 001, Fig. 1: trained, then its weights scaled, then measured again."""

from __future__ import annotations

import dataclasses

import torch
from torch import nn

from ...study.checkpoints import checkpoint_bytes
from ...study.registry import read_task, task
from ...study.run_results import MeasurementRow, RunResult
from ...study.runs.measuring import measure_network
from ...study.runs.networks import NetworkRun
from ...study.runs.running import evaluate, train
from ...study.runs.tasks import task_result
from ...study.settings.run import RunSettings
from ...symmetries.named_layers import rescale_layers
from .scaling import scaled_weights

PLAIN, ALL, PAIR = "plain", "all", "pair"
TRAIN, TEST = "task.train_accuracy", "task.test_accuracy"


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
    result = task_result(
        settings,
        accuracies,
        device=device,
        outcome=run.history.outcome,
        epochs=tuple(run.history.epochs),
        checkpoint=checkpoint_bytes(run.model),
        num_train=len(data.x),
        num_test=len(data.test_x),
    )
    return dataclasses.replace(result, measurements=result.measurements + tuple(rows))


def variants(model: nn.Module, factor: float) -> dict[str, nn.Module]:
    """The network as it is, with all weights scaled, and with two layers scaled against each other.

    The last only where two layers follow each other with nothing but a ReLU and pooling between
    them: there the function itself stays the same.
    """
    networks = {PLAIN: model, ALL: scaled_weights(model, factor)}
    if isinstance(getattr(model, "conv2", None), nn.Conv2d) and not hasattr(model, "bn1"):
        networks[PAIR] = rescale_layers(model, "conv1", "conv2", factor)
    return networks
