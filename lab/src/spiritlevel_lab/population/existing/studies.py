"""A study of networks that exist already: made, checked, and stored."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from spiritlevel.ground.errors import SpiritlevelError
from spiritlevel.inputs.checkpoints import load_checkpoint
from spiritlevel.model.batches import map_tensors, tensors
from spiritlevel.results import Progress
from spiritlevel.verbs import measuring as api

from ...statistics.points import MIN_POINTS
from ..registry import check_code, read_task
from ..run_results import describe
from ..settings.definition import Study
from ..settings.run import RunSettings
from ..storage.database import DATABASE
from ..storage.store import Store
from .columns import CHECKPOINT, INITIAL
from .measuring import TASK, CheckpointTask, empty_network, fingerprint, load_parts

SAMPLES = 2  # that go through a network, to see whether it takes them
SAME_WEIGHTS = (
    "The networks {} and {} have the same weights. One network must not count twice: leave one of "
    "them out."
)
WEIGHTS = {INITIAL: "initial_weights", CHECKPOINT: "weights"}  # where a fingerprint is kept


def check_files(networks: Sequence[Mapping[str, Any]]) -> None:
    """Refuse checkpoints that are not there; all of them are named at once."""
    paths = [network["task"][k] for network in networks for k in WEIGHTS if k in network["task"]]
    missing = [path for path in paths if not os.path.exists(path)]
    if missing:
        shown = ", ".join(map(repr, missing[:5]))
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        raise SpiritlevelError(
            f"Every checkpoint must exist. {len(missing)} of {len(paths)} do not: {shown}{more}. "
            "Paths are relative to the table's folder, or to the working folder "
            f"{os.getcwd()!r}."
        )


def with_fingerprints(study: Study, progress: Progress | None = None) -> Study:
    """The study with absolute paths, and the fingerprints of all weights.

    Refuses a checkpoint that does not fit its model, and two that hold the same weights.
    """
    built: dict[str, nn.Module] = {}
    seen: dict[str, str] = {}
    known = []
    for i, (run, network) in enumerate(zip(study.runs(), study.networks, strict=True)):
        if progress is not None:
            progress(i, len(study.networks), "reading checkpoints")
        key = json.dumps(run.model.to_dict(), sort_keys=True)
        if key not in built:
            built = {key: empty_network(run)}  # one in memory
        task = dict(network["task"])
        for column, entry in WEIGHTS.items():
            if column in task:
                load_checkpoint(built[key], task[column])
                task[column], task[entry] = os.path.abspath(task[column]), fingerprint(built[key])
        twin = key + task[WEIGHTS[CHECKPOINT]]
        if twin in seen:
            raise SpiritlevelError(SAME_WEIGHTS.format(repr(seen[twin]), repr(network["name"])))
        seen[twin] = network["name"]
        known.append(dict(network) | {"task": task})
    return dataclasses.replace(study, networks=known)


def check_number(networks: Sequence[Mapping[str, Any]], *, judged: bool) -> None:
    """Refuse a population that is too small for what it is to be judged by."""
    if judged and len(networks) < MIN_POINTS:
        raise SpiritlevelError(
            f"A correlation needs at least {MIN_POINTS} networks. Got {len(networks)}. Add more, "
            "compare them with `spiritlevel compare`, or measure them without their outcomes "
            "(--ignore)."
        )


def check_given(study: Study, *, allow_code: bool = False) -> None:
    """Refuse what would fail for every network: code, measures, data that the model cannot take."""
    runs = study.runs()
    check_code(runs, allow_code=allow_code, received=study.file)
    for pattern in study.measures or ():
        api.cards(pattern)
    if runs[0].task is None:
        raise SpiritlevelError(
            "The study's networks must have a task that measures them. Make such a study with "
            "`spiritlevel study measure`."
        )
    different = {repr([run.model, run.data]): run for run in runs}
    for run in different.values():
        _check_use(run)


def _check_use(run: RunSettings) -> None:
    """Plan the measures for one network on a few samples; nothing is computed with its weights."""
    data, test = load_parts(run)
    model = empty_network(run)
    few = [map_tensors(lambda t: t[:SAMPLES], batch) for batch in data[:1]]
    options = dict(run.measure_options.options or {})
    if read_task(run, CheckpointTask).initial:
        options["initial"] = model.state_dict()
    loss = read_task(run, CheckpointTask).loss
    parts = {"data": few}
    if test is not None:
        parts["test data"] = [map_tensors(lambda t: t[:SAMPLES], batch) for batch in test[:1]]
    for what, part in parts.items():
        shape = tuple(tensors(part[0][0])[0].shape[1:])
        try:
            with torch.no_grad():
                api.preflight(
                    model,
                    part,
                    loss=loss,
                    measures=run.measures,
                    options=options,
                    distributed=False,
                    **run.measure_options.arguments,
                )
        except SpiritlevelError as error:
            raise SpiritlevelError(
                f"The model {run.model.name!r} cannot be measured on this {what}, samples of shape "
                f"{shape}: {error}"
            ) from error
        except Exception as error:  # whatever the user's own code raises
            raise SpiritlevelError(
                f"The model {run.model.name!r} failed on the {what}, whose samples have the shape "
                f"{shape}: {describe(error)}. Check that the model, its arguments and the data fit "
                "together."
            ) from error


def study_of(
    networks: Sequence[Mapping[str, Any]], *, task: Mapping[str, Any], **fields: Any
) -> Study:
    """The study that measures these networks; `fields` are others of a study, None where empty."""
    return Study(
        description=f"{len(networks)} networks that were trained elsewhere.",
        task={"name": TASK} | dict(task),
        networks=list(networks),
        **{key: value for key, value in fields.items() if value is not None},
    )


def open_store(folder: str | os.PathLike[str], study: Study) -> Store:
    """The store of `study`, made, or opened to go on: networks and outcomes may be added to it."""
    if (pathlib.Path(folder) / DATABASE).is_file():
        with Store.open(folder) as store:
            _check_same(store, study)
    return Store.create(folder, study)


def _check_same(store: Store, study: Study) -> None:
    """Refuse a folder with networks that the study does not have, in words about networks."""
    before = store.study.given()
    if before is None:
        return  # a study that trains: what the store says of it is right
    now = set(study.given() or {})
    lost = [known["network"] for id_, known in before.items() if id_ not in now]
    if not lost:
        return
    have = {network["name"] for network in study.networks}
    changed = [name for name in lost if name in have]
    gone = [name for name in lost if name not in have]
    causes = []
    if changed:
        causes.append(
            f"{len(changed)} of its networks have other weights, another model, or are to be "
            f"measured in another way: {_listed(changed)}"
        )
    if gone:
        causes.append(f"{len(gone)} are no longer among those given: {_listed(gone)}")
    raise SpiritlevelError(
        f"The folder {str(store.folder)!r} holds measured networks, and this call does not go on "
        f"with them: {'; '.join(causes)}. Choose another --out, or give the same checkpoints, "
        "data and options as before."
    )


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(map(repr, names[:3])) + more
