"""Paper 001, Table 4: one epoch of noise at the end makes a network flatter, and no better.

The task trains one network, fits it further, and trains it for one epoch on noise.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence

import torch

from ...claims.experiment import Experiment, Outcome, Row
from ...claims.findings import Agreement, Finding, missed
from ...claims.numbers import IntervalEstimate, mean
from ...claims.rows import column
from ...population.registry import read_task, task
from ...population.run_results import EpochRow, History, MeasurementRow, RunResult
from ...population.runs.networks import NetworkRun
from ...population.runs.running import measure_network, train
from ...population.runs.tasks import network_result
from ...population.settings.run import RunSettings
from ...population.settings.sections import StopSettings
from ..recipes.recipe import outcome

STANDARD, FITTED, WEAK, STRONG = ("standard", "fitted", "weak", "strong")
TRAIN, TEST, EPOCHS = "task.train_accuracy", "task.test_accuracy", "task.epochs"


def analyse(experiment: Experiment, rows: Sequence[Row]) -> Outcome:
    """Each network after the epoch of noise against itself; one strength of noise is enough."""
    same = experiment.thresholds["same"]
    found = outcome(experiment, rows, fitted=_fitted(rows, same))
    weak, strong = found.findings[:2], found.findings[2:]
    return dataclasses.replace(found, agrees=_agreement([weak, strong]))


def _fitted(rows: Sequence[Row], same: float) -> str:
    """Whether these networks have the same training accuracy, as the claim requires."""
    accuracies = {
        stage: mean(column(rows, f"{TRAIN}/{stage}")) for stage in (STANDARD, WEAK, STRONG)
    }
    said = (
        f"The training accuracy is {accuracies[STANDARD]} in the standard networks, "
        f"{accuracies[WEAK]} after weak and {accuracies[STRONG]} after strong noise"
    )
    apart = [stage for stage in (WEAK, STRONG) if abs(_change(rows, stage).value) > same]
    if not apart:
        return f"{said}, the same within {same:g}."
    return (
        f"{said}: after {' and '.join(apart)} noise it is not the same (within {same:g}), as the "
        "claim would require."
    )


def _change(rows: Sequence[Row], stage: str) -> IntervalEstimate:
    return mean(row[f"{TRAIN}/{stage}"] - row[f"{TRAIN}/{STANDARD}"] for row in rows)


def _agreement(strengths: Sequence[Sequence[Finding]]) -> Agreement:
    """The better of both strengths; an unchanged accuracy counts only with a smaller trace."""
    flatter = [same for lower, same in strengths if lower.result == "held"]
    if flatter:
        return "yes" if any(f.result in ("held", "not refuted") for f in flatter) else "partly"
    refuted = all(missed(findings) == "no" for findings in strengths)
    return "no" if refuted else "undecided"


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
        rows,
        device=device,
        outcome=run.history.outcome,
        epochs=(dataclasses.replace(e, epoch=i) for i, e in enumerate(epochs, start=1)),
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
