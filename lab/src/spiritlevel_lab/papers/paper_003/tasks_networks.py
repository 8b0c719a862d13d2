"""One network of paper 003: trained or taken over, measured by layer, rescaled, measured again."""

from __future__ import annotations

import dataclasses
import itertools
import json
from typing import Any

import torch
from torch import Tensor, nn

from spiritlevel.ground.errors import SpiritlevelError
from spiritlevel.inputs.checkpoints import load_checkpoint
from spiritlevel.symmetries.named_layers import rescale_layers, rescale_neurons

from ...population.registry import read_task, task
from ...population.run_results import EpochRow, History, MeasurementRow, RunResult
from ...population.runs.networks import NetworkRun
from ...population.runs.outcomes import DIVERGED
from ...population.runs.run_data import derived_generator
from ...population.runs.running import measure_network, train
from ...population.runs.tasks import network_result
from ...population.settings.run import RunSettings
from ...population.storage.integrity import intact_checkpoint
from ...population.storage.store import Store

WEIGHTED = (nn.Conv2d, nn.Linear)
LAYERS, NEURONS = "layers", "neurons"
KINDS = (LAYERS, NEURONS)
CHANGE_ALLOWED = 1e-3  # of the largest output: far above rounding, far below another function

CHANGE = "task.output_change"
HESSIAN = {"scaled.trace": "task.trace", "scaled.lambda_max": "task.lambda_max"}
CHECKED = 512  # samples on which the rescaled network must give the same outputs
# All that training depends on.
SAME = ("model", "data", "training", "interventions", "stop", "seed")


@dataclasses.dataclass(frozen=True)
class NetworkArguments:
    """Where the network comes from, and how it is rescaled."""

    population: str = ""  # the folder of a study that has trained it; "": trained here
    rescale: str = f"{LAYERS} {NEURONS}"
    low: float = 5.0  # factors are drawn from low to high
    high: float = 25.0


@task("tasks_003_networks", arguments=NetworkArguments)
def run(settings: RunSettings, device: str | torch.device = "cpu") -> RunResult:
    """Numbers are called NAME, NAME[LAYER], and with /layers or /neurons after a rescaling.

    task.trace[LAYER] and task.lambda_max[LAYER] are of the Hessian of that layer's weights alone,
    without the factor of their squared norm.
    """
    arguments = read_task(settings, NetworkArguments)
    kinds = _kinds(arguments.rescale)
    run = NetworkRun.start(settings, device)
    if arguments.population:
        run.history = take_over(arguments.population, settings, run.model)
    else:
        train(run)
    rows: list[MeasurementRow] = []
    changes: dict[str, float] = {}
    if run.history.outcome != DIVERGED:
        rows += _measured(run, "")
        for kind in kinds:
            other = rescaled(
                run.model,
                kind,
                low=arguments.low,
                high=arguments.high,
                generator=derived_generator(settings.seed, f"{kind}/{_network_of(settings)}"),
            )
            changes[f"{CHANGE}/{kind}"] = output_change(run.model, other, run.data.x[:CHECKED])
            rows += _measured(dataclasses.replace(run, model=other), f"/{kind}")
    return network_result(run, changes, rows, device=device)


def _kinds(words: str) -> list[str]:
    kinds = words.split()
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise SpiritlevelError(
            f"The study's task.rescale must hold the words {' and '.join(KINDS)}, one of them or "
            f"none. Got {unknown[0]!r}."
        )
    return kinds


def _network_of(settings: RunSettings) -> str:
    """Which network it is, beside its seed: so that each one draws factors of its own."""
    sections = (settings.model, settings.training, settings.stop)
    return json.dumps([section.to_dict() for section in sections], sort_keys=True)


def _measured(run: NetworkRun, suffix: str) -> list[MeasurementRow]:
    """Every number of the report as one of the whole run, with its layer in its name."""
    rows = []
    for row in measure_network(run, run.settings.measures):
        layer = f"[{row.layer}]" if row.layer else ""
        rows.append(dataclasses.replace(row, measure=f"{row.measure}{layer}{suffix}", layer=""))
        if row.layer and row.measure in HESSIAN:
            rows.append(_without_norm(row, run.model, f"{HESSIAN[row.measure]}{layer}{suffix}"))
    return rows


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


def take_over(folder: str, settings: RunSettings, model: nn.Module) -> History:
    """Put the weights of the same network in that study into `model`; how its training went."""
    wanted = _training_of(settings)
    with Store.open(folder) as store:
        runs = [row for row in store.rows("runs") if _is_same(row, wanted)]
        if len(runs) != 1:
            raise SpiritlevelError(
                f"The study in {folder!r} (task.population) must have one finished run with the "
                f"same model, data, training, stop and seed as {settings.axes}, seed "
                f"{settings.seed}. It has {len(runs)}. Run that study to its end first, with the "
                "same preset and the same --set."
            )
        [run] = runs
        epochs = [_epoch(row) for row in store.rows("epochs") if row["run"] == run["id"]]
        path = intact_checkpoint(store.folder, run["id"])
    if run["outcome"] != DIVERGED:
        load_checkpoint(model, path)
    return History(epochs=epochs, outcome=run["outcome"])


def _training_of(settings: RunSettings) -> dict[str, Any]:
    return {key: value for key, value in settings.to_dict().items() if key in SAME}


def _is_same(row: dict[str, Any], wanted: dict[str, Any]) -> bool:
    settings = RunSettings.from_json(row["settings"], row["axes"])
    return row["status"] == "done" and _training_of(settings) == wanted


def _epoch(row: dict[str, Any]) -> EpochRow:
    return EpochRow(**{key: value for key, value in row.items() if key != "run"})


def rescaled(
    model: nn.Module, kind: str, *, low: float, high: float, generator: torch.Generator
) -> nn.Module:
    """A copy in which every layer but the last is multiplied, and the next one divided, at random.

    Args:
        model: layers in the order in which they are used, with ReLU and pooling alone between them.
        kind: "layers" draws one factor per layer, "neurons" one per unit.
        low: the smallest factor.
        high: the largest.
        generator: for the random factors.
    """
    paths = [path for path, module in model.named_modules() if isinstance(module, WEIGHTED)]
    changed = model
    for producer, consumer in itertools.pairwise(paths):
        layer = model.get_submodule(producer)
        count = 1 if kind == LAYERS else len(layer.weight)  # type: ignore[arg-type]
        drawn = torch.rand(count, generator=generator, dtype=torch.float64)
        factors = low + (high - low) * drawn
        if kind == LAYERS:
            changed = rescale_layers(changed, producer, consumer, float(factors))
        else:
            changed = rescale_neurons(changed, producer, consumer, factors)
    return changed


@torch.no_grad()
def output_change(model: nn.Module, other: nn.Module, x: Tensor) -> float:
    """The largest difference of an output, as a share of the largest output.

    Raises SpiritlevelError if rounding cannot explain it: then the function has changed.
    """
    before, after = model(x).double(), other(x).double()
    change = float((after - before).abs().max() / before.abs().max())
    if not change <= CHANGE_ALLOWED:
        raise SpiritlevelError(
            "The study's model must be a chain of linear and convolution layers with ReLU and "
            f"pooling alone between them, so that rescaling leaves its outputs. In this "
            f"{type(model).__name__} they change by {change:.2g} of the largest. Choose for "
            "example lenet5 or mlp."
        )
    return change
