"""One data set of paper 002, section 6: drawn, fitted, measured."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ... import api
from ...errors import SpiritlevelError
from ...study.registry import read_task, task
from ...study.run_results import EpochRow, RunResult
from ...study.runs.run_data import derived_generator
from ...study.runs.tasks import task_result
from ...study.settings.run import RunSettings
from .class_separation import Clouds, fit_logistic, fit_ridge, inputs_of, random_extractor

FITS = {"ridge": (fit_ridge, "mse"), "logistic": (fit_logistic, "bce")}


@dataclasses.dataclass(frozen=True)
class SeparationArguments:
    """How the points are drawn, and what is fitted to them."""

    separation: float = 1.0
    classifier: str = "ridge"  # or "logistic"
    points: int = 500
    fresh: int = 200_000  # points to test on


@task(
    "tasks_class_separation", uses=(), arguments=SeparationArguments
)  # points and classifier are made here
def run(settings: RunSettings, device: str | torch.device = "cpu") -> RunResult:
    """Everything depends on the seed and the task's arguments.

    The sums are small and in float64: they are done on the CPU whatever the device.
    """
    arguments = read_task(settings, SeparationArguments)
    if arguments.classifier not in FITS:
        raise SpiritlevelError(
            f"The study's task.classifier must be one of {', '.join(FITS)}. "
            f"Got {arguments.classifier!r}."
        )
    fit, loss = FITS[arguments.classifier]
    clouds = Clouds.draw(arguments.separation, derived_generator(settings.seed, "clouds"))
    extractor = random_extractor(derived_generator(settings.seed, "extractor"))
    features, classes = clouds.sample(
        arguments.points, derived_generator(settings.seed, "training points")
    )
    fresh, fresh_classes = clouds.sample(
        arguments.fresh, derived_generator(settings.seed, "fresh points")
    )
    weight, bias = fit(features, classes)
    head = nn.Linear(len(weight), 1, dtype=torch.float64)
    with torch.no_grad():
        head.weight.copy_(weight[None])
        head.bias.copy_(bias)
    model = nn.Sequential(OrderedDict([*extractor.named_children(), ("head", head)])).eval()
    report = api.measure(
        model,
        [(inputs_of(extractor, features), _targets(classes, loss)[:, None])],
        loss=loss,
        measures=settings.measures,
        seed=settings.seed,
        distributed=False,
        **_measure_options(settings),
    )
    row = EpochRow(
        1,
        *_evaluate(features @ weight + bias, classes, loss),
        *_evaluate(fresh @ weight + bias, fresh_classes, loss),
    )
    return task_result(
        settings,
        report,
        outcome="fitted",
        epochs=(row,),
        num_train=len(features),
        num_test=len(fresh),
    )


def _measure_options(settings: RunSettings) -> dict[str, Any]:
    """The study's options; all points are measured, and only the linear layer is trained."""
    asked = settings.measure_options
    if asked.samples is not None:
        raise SpiritlevelError(
            "The study's measure_options.samples must be left out with this task: it measures on "
            f"all of its points. Got {asked.samples!r}. Set task.points instead."
        )
    return {"layers": "head", "options": asked.options} | asked.arguments


def _targets(classes: Tensor, loss: str) -> Tensor:
    """±1 for the squared loss, shares for the logistic one."""
    return 2.0 * classes.double() - 1.0 if loss == "mse" else classes.double()


def _evaluate(outputs: Tensor, classes: Tensor, loss: str) -> tuple[float, float]:
    """Mean loss and accuracy."""
    targets = _targets(classes, loss)
    values = F.mse_loss if loss == "mse" else F.binary_cross_entropy_with_logits
    right = (outputs > 0) == (classes == 1)
    return float(values(outputs, targets)), float(right.double().mean())
