"""What would fail in every run later is refused before the first: files, networks, measures."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ... import api
from ...engine.options import as_options
from ...engine.precision import Precision
from ...errors import SpiritlevelError
from .. import models
from ..runs.hooks import ON_NETWORKS, BatchChanges
from ..runs.networks import build_model
from ..runs.results import describe
from ..runs.run_data import load_data
from ..runs.tasks import find_task
from ..runs.transfer import find_start
from .definition import Study
from .run import MODEL_OWN, RunSettings

SAMPLES = 2  # that go through a network, to see whether it takes them
NAMED = ("layers", "head")  # measure_options that name parts of the network


def check(study: Study) -> None:
    """Refuse now what would fail in every run later: models, data, measures, their options."""
    runs = study.runs()
    for name in {run.task["name"] for run in runs if run.task is not None}:
        find_task(name)
    for run in _different(runs, lambda r: json.dumps(r.measure_options)):
        _check_options(run.measure_options)
    _check_starts(runs)
    if any(run.task is None for run in runs):  # a task may have numbers of its own
        rules = [run.stop["measure"] for run in runs if "measure" in run.stop]
        for pattern in {*(study.measures or ()), *(study.epoch_measures or ()), *rules}:
            api.cards(pattern)
    looks = {_data_of(run): _look(run) for run in _different(runs, _data_of)}
    for run in _different(runs, lambda r: _network_of(r) + looks[_data_of(r)].kind):
        if ":" in run.model["name"]:  # what a factory of the user's costs nobody knows
            continue
        if run.task is not None:  # it has its own use of the network, if any
            with torch.device("meta"):  # shapes only: no memory, no time
                build_model(run, "meta")
        else:
            # In full: a pass over shapes alone makes torch import its compiler, which takes longer.
            model, look = build_model(run, "cpu").eval(), looks[_data_of(run)]
            _check_fit(run, model, look)
            _check_layers(run, model, look)


def _different(runs: Sequence[RunSettings], key: Callable[[RunSettings], str]) -> list[RunSettings]:
    """One run of each kind."""
    return list({key(run): run for run in runs}.values())


def _data_of(run: RunSettings) -> str:
    """All that decides what a run's data look like, apart from random numbers."""
    return json.dumps([run.data, run.interventions, run.training["dtype"]])


def _network_of(run: RunSettings) -> str:
    """All that decides which network is built and how it is used, apart from random numbers."""
    changes = {name: run.interventions.get(name) for name in (*ON_NETWORKS, "mixup")}
    layers = [run.measure_options.get(name) for name in NAMED]
    use = [run.training.get("norm_control"), run.training["dtype"], run.task is None]
    return json.dumps([run.model, changes, layers, use])


# -- files and data ------------------------------------------------------------------------------


def _check_starts(runs: Sequence[RunSettings]) -> None:
    for start, seed in {(r.model["init_from"], r.seed) for r in runs if "init_from" in r.model}:
        path = find_start(start, seed)
        if not path.is_file():
            raise SpiritlevelError(
                f"The study's model.init_from must be weights that are there. Got {start!r}, which "
                f"is the file {str(path)!r}. Check the path, or run that study first."
            )


@dataclasses.dataclass(frozen=True)
class Look:
    """The first samples of a run's data, and what there is to know of the rest."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    num_classes: int

    @property
    def kind(self) -> str:
        """The same for data that the same networks can take."""
        return f"{self.x[0].shape}, {self.test_x[0].shape}, {self.x.dtype}, {self.num_classes}"


def _look(run: RunSettings) -> Look:
    """Load the data once, and try what is done to every batch."""
    data = load_data(run)
    change = BatchChanges(
        run.interventions, num_classes=data.num_classes, generator=torch.Generator()
    )
    # Copies: a part of a tensor would keep the whole of it in memory.
    look = Look(
        data.x[:SAMPLES].clone(),
        data.y[:SAMPLES].clone(),
        data.test_x[:SAMPLES].clone(),
        data.num_classes,
    )
    if run.task is None:
        change(look.x, look.y)
    return look


# -- network and data ----------------------------------------------------------------------------


def _check_fit(run: RunSettings, model: nn.Module, look: Look) -> None:
    """Refuse a network that cannot take the samples, or has not one output a class."""
    options = {key: value for key, value in run.model.items() if key not in MODEL_OWN}
    network = f"The study's model {run.model['name']!r} with the options {options}"
    known = inspect.signature(getattr(models, run.model["name"])).parameters.values()
    takes = ", ".join(f"{option.name}={option.default!r}" for option in known)
    parts = [(run.data["name"], "training", look.x)]
    if look.test_x.shape != look.x.shape:
        parts.append((run.data.get("test") or run.data["name"], "test", look.test_x))
    for name, part, x in parts:
        shape = tuple(x.shape[1:])
        came = f"the {part} data {name!r}, {look.num_classes} classes of samples of shape {shape}"
        try:
            with torch.no_grad():
                outputs = model(x)
        except Exception as error:  # torch's words for a shape that does not fit
            raise SpiritlevelError(
                f"{network} cannot take {came}: {describe(error)}. Choose another model, or give "
                f"it the options for this shape; it takes {takes}."
            ) from error
        mixed = "mixup" in run.interventions  # its labels are shares of all classes
        enough = outputs.dim() == 2 and outputs.shape[1] >= look.num_classes
        if not enough or (mixed and outputs.shape[1] != look.num_classes):
            need = f"{'exactly' if mixed else 'at least'} {look.num_classes} outputs a sample"
            raise SpiritlevelError(
                f"{network} must have {need} for {came}. Got outputs of shape "
                f"{tuple(outputs.shape[1:])}. Set its option for this number; it takes {takes}."
            )


# -- measures ------------------------------------------------------------------------------------


@contextlib.contextmanager
def _named(where: str) -> Iterator[None]:
    """The words of `spiritlevel.measure`, with the place in the study that they are about."""
    try:
        yield
    except SpiritlevelError as error:
        raise SpiritlevelError(f"The study's {where}: {error}") from error


def _check_options(given: Mapping[str, Any]) -> None:
    """What `spiritlevel.measure` would refuse whatever the network is."""
    with _named("measure_options cannot be used"):
        Precision(**{key: value for key, value in given.items() if key in api.PRECISION})
        as_options(given.get("options"))
    head, layers = given.get("head"), given.get("layers")
    patterns = layers if isinstance(layers, list | tuple) else [layers]
    if layers is not None and not (patterns and all(isinstance(p, str) for p in patterns)):
        raise SpiritlevelError(
            "The study's measure_options.layers must be a name or pattern of layers, or a list of "
            f"them. Got {layers!r}."
        )
    if head is not None and not isinstance(head, str):
        raise SpiritlevelError(
            f"The study's measure_options.head must be the name of a layer. Got {head!r}."
        )


def _check_layers(run: RunSettings, model: nn.Module, look: Look) -> None:
    """Layers and head as `spiritlevel.measure` looks for them, in the network before training."""
    named: dict[str, Any] = {name: run.measure_options.get(name) for name in NAMED}
    if not any(named.values()):
        return
    own = dict(run.measure_options.get("options") or {})
    during = [run.epoch_measures or run.measures] if run.measure_every is not None else []
    with _named(f"measure_options do not suit its model {run.model['name']!r}"):
        for names in (run.measures, *during):
            api.preflight(
                model,
                (look.x, look.y),
                measures=names,
                options={"initial": model.state_dict()} | own,
                distributed=False,
                **named,
            )
