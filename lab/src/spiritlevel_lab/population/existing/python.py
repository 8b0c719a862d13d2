"""Networks in a Python program, measured and judged like those of a study."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from spiritlevel.ground.errors import SpiritlevelError
from spiritlevel.inputs.checkpoints import load_checkpoint
from spiritlevel.measures.setup import Setup
from spiritlevel.verbs import measuring as api
from spiritlevel.verbs.landscape.cache import of_data

from ..executors.local import run_here
from ..executors.progress import Watch
from ..population import Population
from ..run_results import RunResult
from ..runs.machine import repeatable
from ..settings.keys import readers_of
from ..settings.run import RunSettings
from ..settings.sections import MeasureSettings
from ..storage.integrity import check_database
from .columns import CHECKPOINT, SEED, ColumnRoles, NetworkTable, read_networks
from .measuring import IN_PYTHON, MeasuredNetwork, fingerprint, measured, state_of
from .studies import SAME_WEIGHTS, check_number, open_store, study_of

Given = nn.Module | str | os.PathLike[str]


def measure_networks(
    networks: Mapping[str, Given] | Sequence[Given],
    data: Iterable[Any],
    *,
    settings: Mapping[str, Sequence[Any]] | None = None,
    outcomes: Mapping[str, Sequence[float]] | None = None,
    seeds: Sequence[int] | None = None,
    initial: Sequence[Given] | None = None,
    factory: Callable[..., nn.Module] | None = None,
    factory_settings: Sequence[str] = (),
    test: Iterable[Any] | None = None,
    measures: str | Sequence[str] | None = None,
    loss: Any = "cross_entropy",
    folder: str | os.PathLike[str] | None = None,
    watch: Watch | None = None,
    **arguments: Any,
) -> Population:
    """Measure networks that exist already, as a population that can be judged.

    Each number is that of `spiritlevel.measure` with the same arguments. The statistics, figures
    and pages of a study take what is returned.

    Args:
        networks: modules in eval mode, or checkpoints for `factory`; a mapping gives them names.
        data: what they are measured on, as for `spiritlevel.measure`.
        settings: by name, one value for each network, such as {"lr": [0.1, 0.1, 0.01, 0.01]};
            networks with equal settings are counted as one setting.
        outcomes: by name, one number for each network, such as {"test_accuracy": [...]}.
        seeds: of their training, one for each; also of the probes.
        initial: networks or checkpoints from before training, for measures that ask for them.
        factory: builds the network of a checkpoint.
        factory_settings: those of the settings that the factory is called with.
        test: test data; test loss, test accuracy and the gap are then outcomes, too.
        measures: names or patterns; None takes those that suit the networks.
        loss: as for `spiritlevel.measure`.
        folder: where the store is kept; None keeps none. A call that was interrupted goes on there.
        watch: called a few times per second with a `StudyStatus`.
        arguments: others of `spiritlevel.measure`, such as rtol, layers and options.
    """
    given = dict(networks) if isinstance(networks, Mapping) else dict(_numbered(networks))
    columns = dict(settings or {}) | dict(outcomes or {})
    columns |= {} if seeds is None else {SEED: seeds}
    _check_lengths(given, columns | ({} if initial is None else {"initial": initial}))
    rows = [
        {CHECKPOINT: name} | {key: values[i] for key, values in columns.items()}
        for i, name in enumerate(given)
    ]
    table = NetworkTable(rows, [f"network {name!r}" for name in given], "'networks'")
    roles = ColumnRoles(list(settings or {}), list(outcomes or {}), list(factory_settings))
    described = read_networks(table, roles)
    check_number(described, judged=bool(outcomes) or test is not None)
    for pattern in [measures] if isinstance(measures, str) else measures or ():
        api.cards(pattern)
    held, others = _split(arguments)
    everything = _Networks(
        list(given.values()),
        None if initial is None else list(initial),
        factory,
        [each["model"] for each in described],
        MeasuredNetwork(nn.Identity(), data, test, None, loss, others),
    )
    pairs = zip(described, everything.fingerprints(list(given)), strict=True)
    study = study_of(
        [each | {"model": {}, "task": {"weights": weights}} for each, weights in pairs],
        name="networks",
        model="given",
        task={"name": IN_PYTHON} | everything.task(kept=folder is not None),
        measures=measures,
        measure_options=held,
        training={"threads": torch.get_num_threads()},
    )
    places = {run.id: i for i, run in enumerate(study.runs())}

    def run(of_run: RunSettings, **_: Any) -> RunResult:
        found = everything.subject(places[of_run.id])
        parameter = next(found.model.parameters(), torch.empty(0))
        with repeatable(of_run.training.threads):
            return measured(of_run, found, parameter.device)

    with contextlib.ExitStack() as stack:
        place = folder or stack.enter_context(tempfile.TemporaryDirectory(prefix="spiritlevel-"))
        store = stack.enter_context(open_store(place, study))
        check_database(store)
        store.retry_failed()
        run_here(store, watch=watch, run=run)
        return Population.of(store)


@dataclasses.dataclass(frozen=True)
class _Networks:
    """What a call was given: modules or checkpoints, and what all of them have in common."""

    given: Sequence[Given]
    initial: Sequence[Given] | None
    factory: Callable[..., nn.Module] | None
    arguments: Sequence[Mapping[str, Any]]  # of the factory, for each
    common: MeasuredNetwork

    def subject(self, i: int) -> MeasuredNetwork:
        """One of them, ready to be measured."""
        start = None
        if self.initial is not None:
            start = state_of(_built(self.initial[i], self.factory, self.arguments[i]))
        model = _built(self.given[i], self.factory, self.arguments[i])
        return dataclasses.replace(self.common, model=model, initial=start)

    def fingerprints(self, names: Sequence[str]) -> list[str]:
        """A checksum of the weights of each network; refuses two that have the same weights."""
        seen: dict[str, str] = {}
        for name, given, arguments in zip(names, self.given, self.arguments, strict=True):
            weights = fingerprint(_built(given, self.factory, arguments))
            if weights in seen:
                raise SpiritlevelError(SAME_WEIGHTS.format(repr(seen[weights]), repr(name)))
            seen[weights] = name
        return list(seen)

    def task(self, *, kept: bool) -> dict[str, str]:
        """How they are measured; where a store is kept, also on which samples."""
        others, loss = self.common.arguments, self.common.loss
        how = {key: _word(others[key]) for key in sorted(others)} | {"loss": _word(loss)}
        task = {"how": json.dumps(how)}
        parts = {"data": self.common.data, "test": self.common.test} if kept else {}
        for name, part in parts.items():
            if part is not None:
                model = _built(self.given[0], self.factory, self.arguments[0])
                task[name] = of_data(Setup(loss).workspace(model, part).surface)
        return task


def _numbered(networks: Sequence[Given]) -> list[tuple[str, Given]]:
    if isinstance(networks, str | os.PathLike | nn.Module):
        raise SpiritlevelError(
            "The 'networks' argument of measure_networks must be a list or mapping of networks. "
            f"Got one {type(networks).__name__}. Measure a single one with spiritlevel.measure."
        )
    return [
        (f"network {i}" if isinstance(each, nn.Module) else os.fspath(each), each)
        for i, each in enumerate(networks)
    ]


def _check_lengths(given: Mapping[str, Given], columns: Mapping[str, Sequence[Any]]) -> None:
    for name, values in columns.items():
        if len(values) != len(given):
            raise SpiritlevelError(
                f"Every column of measure_networks must have one value for each of the "
                f"{len(given)} networks. {name!r} has {len(values)}."
            )


def _built(
    given: Given, factory: Callable[..., nn.Module] | None, arguments: Mapping[str, Any]
) -> nn.Module:
    if isinstance(given, nn.Module):
        return given
    if factory is None:
        raise SpiritlevelError(
            "The 'factory' argument of measure_networks must build the networks of checkpoints. "
            f"Got None, and the checkpoint {str(given)!r}. Give a function that returns the module."
        )
    model = factory(**arguments)
    if not isinstance(model, nn.Module):
        raise SpiritlevelError(
            "The 'factory' argument of measure_networks must return a torch.nn.Module. Got "
            f"{type(model).__name__}."
        )
    load_checkpoint(model, given)
    return model.eval()


def _split(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arguments of `measure` that a store can hold, and the others."""
    ours = [key for key in readers_of(MeasureSettings) if key not in ("samples", "batch")]
    held = {key: value for key, value in arguments.items() if key in ours}
    return held, {key: value for key, value in arguments.items() if key not in ours}


def _word(value: Any) -> str:
    """What can be said of an argument in a text that is the same in the next program."""
    return str(getattr(value, "__qualname__", value))
