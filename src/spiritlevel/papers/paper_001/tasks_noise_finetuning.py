"""One network of paper 001, Table 4: trained, fitted on, and for one epoch trained on noise."""

from __future__ import annotations

import copy
import dataclasses

import torch

from ...study.registry import read_task, task
from ...study.run_results import EpochRow, History, MeasurementRow, RunResult
from ...study.runs.measuring import measure_network
from ...study.runs.networks import NetworkRun
from ...study.runs.running import train
from ...study.settings.run import RunSettings
from ...study.settings.stop import StopSettings
from ..task_numbers import network_result

STANDARD, FITTED, WEAK, STRONG = STAGES = ("standard", "fitted", "weak", "strong")
TRAIN, TEST, EPOCHS = "task.train_accuracy", "task.test_accuracy", "task.epochs"


@dataclasses.dataclass(frozen=True)
class NoiseArguments:
    """What each stage is reached by."""

    standard: float = 0.9  # training accuracy
    fitted: float = 0.99  # training accuracy
    weak: float = 0.18  # standard deviation of the noise
    strong: float = 0.7071  # standard deviation of the noise


@task("tasks_001_noise_finetuning", arguments=NoiseArguments)
def run(settings: RunSettings, device: str | torch.device = "cpu") -> RunResult:
    """Every number comes as NAME/standard, /fitted, /weak and /strong (noise).

    The first two end at their training accuracy; the other two are one more epoch with noise,
    each from the fitted network. Accuracy and curvature are always taken on data without noise.
    """
    arguments = read_task(settings, NoiseArguments)
    start = NetworkRun.start(settings, device)
    rows: list[MeasurementRow] = []
    numbers: dict[str, float] = {}
    epochs: list[EpochRow] = []

    def look(stage: str, run: NetworkRun, count: int) -> None:
        rows.extend(
            dataclasses.replace(row, measure=f"{row.measure}/{stage}")
            for row in measure_network(run, settings.measures)
            if row.layer == ""
        )
        last = run.history.epochs[-1]
        numbers[f"{TRAIN}/{stage}"] = last.train_accuracy
        numbers[f"{TEST}/{stage}"] = last.test_accuracy
        numbers[f"{EPOCHS}/{stage}"] = count

    for stage in (STANDARD, FITTED):
        until = _until(settings, getattr(arguments, stage))
        run = dataclasses.replace(start, settings=until, history=History())
        train(run)
        epochs += run.history.epochs
        look(stage, run, len(epochs))
    for stage in (WEAK, STRONG):
        run = dataclasses.replace(
            start,
            settings=_noisy(settings, getattr(arguments, stage)),
            model=copy.deepcopy(start.model),
            history=History(),
        )
        train(run)
        look(stage, run, len(epochs) + 1)
    return network_result(
        start,
        numbers,
        device=device,
        outcome=run.history.outcome,
        epochs=[dataclasses.replace(e, epoch=i) for i, e in enumerate(epochs, start=1)],
        measured=rows,
    )


def _until(settings: RunSettings, accuracy: float) -> RunSettings:
    """The same training, to this accuracy; momentum starts at 0 again."""
    return dataclasses.replace(settings, stop=StopSettings(train_accuracy=accuracy))


def _noisy(settings: RunSettings, std: float) -> RunSettings:
    """One epoch more with noise on the inputs."""
    return dataclasses.replace(
        settings,
        training=dataclasses.replace(settings.training, epochs=1),
        interventions=dataclasses.replace(settings.interventions, input_noise=std),
        stop=StopSettings(),
    )
