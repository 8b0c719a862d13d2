"""One network of paper 003: trained or taken over, measured by layer, rescaled, measured again."""

from __future__ import annotations

import copy
import dataclasses
import json

import torch
from torch import Tensor, nn

from ...errors import SpiritlevelError
from ...study.checkpoints import checkpoint_bytes
from ...study.registry import task
from ...study.runs.ending import DIVERGED
from ...study.runs.measuring import measure_network
from ...study.runs.networks import build_model
from ...study.runs.results import MeasurementRow, RunResult
from ...study.runs.run_data import RunData, derived_generator, load_data
from ...study.runs.running import train
from ...study.runs.tasks import task_result
from ...study.settings.run import RunSettings
from ..task_settings import read_task
from .rescaling import KINDS, LAYERS, NEURONS, output_change, rescaled
from .tasks_population import take_over

CHANGE = "task.output_change"
HESSIAN = {"scaled.trace": "task.trace", "scaled.lambda_max": "task.lambda_max"}
CHECKED = 512  # samples on which the rescaled network must give the same outputs


@dataclasses.dataclass(frozen=True)
class NetworkArguments:
    """Where the network comes from, and how it is rescaled."""

    population: str = ""  # the folder of a study that has trained it; "": trained here
    rescale: str = f"{LAYERS} {NEURONS}"
    low: float = 5.0  # factors are drawn from low to high
    high: float = 25.0


@task("tasks_003_networks")
def run(settings: RunSettings, device: str | torch.device = "cpu") -> RunResult:
    """Numbers are called NAME, NAME[LAYER], and with /layers or /neurons after a rescaling.

    task.trace[LAYER] and task.lambda_max[LAYER] are of the Hessian of that layer's weights alone,
    without the factor of their squared norm.
    """
    arguments = read_task(settings, NetworkArguments)
    kinds = _kinds(arguments.rescale)
    data = load_data(settings, device)
    model = build_model(settings, device)
    initial = copy.deepcopy(model.state_dict())
    if arguments.population:
        history = take_over(arguments.population, settings, model)
    else:
        history = train(model, data, settings, initial=initial)
    rows: list[MeasurementRow] = []
    changes: dict[str, float] = {}
    if history.outcome != DIVERGED:
        rows += _measured(settings, model.eval(), data, initial, "")
        for kind in kinds:
            other = rescaled(
                model,
                kind,
                low=arguments.low,
                high=arguments.high,
                generator=derived_generator(settings.seed, f"{kind}/{_network_of(settings)}"),
            )
            changes[f"{CHANGE}/{kind}"] = output_change(model, other, data.x[:CHECKED])
            rows += _measured(settings, other, data, initial, f"/{kind}")
    result = task_result(
        settings,
        changes,
        device=device,
        outcome=history.outcome,
        epochs=tuple(history.epochs),
        checkpoint=checkpoint_bytes(model),
        num_train=len(data.x),
        num_test=len(data.test_x),
    )
    return dataclasses.replace(result, measurements=result.measurements + tuple(rows))


def _kinds(given: str) -> list[str]:
    found = given.split()
    if unknown := [kind for kind in found if kind not in KINDS]:
        raise SpiritlevelError(
            f"The study's task.rescale must hold the words {' and '.join(KINDS)}, one of them or "
            f"none. Got {unknown[0]!r}."
        )
    return found


def _network_of(settings: RunSettings) -> str:
    """Which network it is, beside its seed: so that each one draws factors of its own."""
    sections = (settings.model, settings.training, settings.stop)
    return json.dumps([section.to_dict() for section in sections], sort_keys=True)


def _measured(
    settings: RunSettings,
    model: nn.Module,
    data: RunData,
    initial: dict[str, Tensor],
    suffix: str,
) -> list[MeasurementRow]:
    """Every number of the report as one of the whole run, with its layer in its name."""
    found = []
    for row in measure_network(settings, model, data, initial, settings.measures):
        place = f"[{row.layer}]" if row.layer else ""
        found.append(dataclasses.replace(row, measure=f"{row.measure}{place}{suffix}", layer=""))
        if row.layer and row.measure in HESSIAN:
            found.append(_without_norm(row, model, f"{HESSIAN[row.measure]}{place}{suffix}"))
    return found


def _without_norm(row: MeasurementRow, model: nn.Module, name: str) -> MeasurementRow:
    weight = model.get_submodule(row.layer).weight
    assert isinstance(weight, Tensor)
    square = float(weight.detach().double().square().sum())
    return dataclasses.replace(
        row,
        measure=name,
        layer="",
        value=row.value / square,
        stderr=None if row.stderr is None else row.stderr / square,
        data_stderr=None if row.data_stderr is None else row.data_stderr / square,
    )
