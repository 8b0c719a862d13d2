"""Checks before the first run: files, networks and measures that would fail in every run."""

from __future__ import annotations

import dataclasses
import inspect
import os
import pathlib
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import nn

from spiritlevel.ground.errors import SpiritlevelError, brief, is_out_of_memory
from spiritlevel.inputs.data.catalogue import CATALOGUE
from spiritlevel.inputs.data.folder import ENDINGS, SPLITS
from spiritlevel.inputs.models.registry import find_factory
from spiritlevel.training.penalties.registry import check_penalty
from spiritlevel.verbs import measuring as api

from .existing.studies import check_given
from .registry import check_code, find_task, read_task, registered_task
from .run_results import describe
from .runs.epochs import BatchChanges
from .runs.networks import build_model, find_start
from .runs.run_data import RunData, forget_data, load_data
from .runs.running import options_of
from .runs.steps import make_penalty
from .runs.training_snapshots import remove_snapshots
from .settings.definition import Study
from .settings.run import RunSettings
from .storage.integrity import FileContent, content_of
from .storage.store import Store

SAMPLES = 2  # that go through a network, to see whether it takes them
# Interventions that decide which network is built, or which outputs it needs.
CHANGING = ("mask", "mask_layers", "mask_place", "bias_shift", "bias_layer", "mixup")


def check(study: Study, *, allow_code: bool = False) -> None:
    """Refuse what would fail in every run: tasks, models, data, measures.

    Also code of unknown origin, unless `allow_code` says that the study is trusted.
    """
    if study.networks:
        check_given(study, allow_code=allow_code)
        return
    runs = study.runs()
    check_code(runs, allow_code=allow_code, received=study.file)
    _check_tasks([run for run in runs if run.task is not None])
    for penalty in (run.training.penalty for run in runs):
        if penalty is not None:
            check_penalty(penalty.name, {"weight": penalty.weight, **penalty.arguments})
    _check_starts(runs)
    if any(run.task is None for run in runs):  # a task may return measures that have no card
        rules = [run.stop.measure for run in runs if run.stop.measure is not None]
        for pattern in {*(study.measures or ()), *(study.epoch_measures or ()), *rules}:
            api.cards(pattern)
    looks = {_data_of(run): _look(run) for run in _different(runs, _data_of)}
    for run in _different(runs, lambda r: _network_of(r) + _kind(looks[_data_of(r)])):
        if ":" in run.model.name:  # a user's factory may take long
            continue
        if run.task is not None:  # how it uses the network is not known here
            with torch.device("meta"):  # shapes only: no memory, no time
                build_model(run, "meta")
        else:
            # In full: a pass over shapes alone makes torch import its compiler, which takes longer.
            model, look = build_model(run, "cpu").eval(), looks[_data_of(run)]
            _check_fit(run, model, look)
            _check_layers(run, model, look)
            _check_penalty(run, model)


def _different(runs: Sequence[RunSettings], key: Callable[[RunSettings], str]) -> list[RunSettings]:
    """One run of each kind."""
    return list({key(run): run for run in runs}.values())


def _data_of(run: RunSettings) -> str:
    """A text of the settings that decide what a run's data look like."""
    return repr([run.data, run.interventions, run.training.dtype])


def _network_of(run: RunSettings) -> str:
    """A text of the settings that decide which network is built and how it is used."""
    changes = [getattr(run.interventions, name) for name in CHANGING]
    layers = [run.measure_options.layers, run.measure_options.head]
    use = [run.training.norm_control, run.training.dtype, run.training.penalty, run.task is None]
    return repr([run.model, changes, layers, use])


def _check_tasks(runs: Sequence[RunSettings]) -> None:
    for run in _different(runs, lambda run: repr(run.task)):
        assert run.task is not None
        find_task(run.task.name)
        registered = registered_task(run.task.name)
        if registered is not None and registered.arguments is not None:
            read_task(run, registered.arguments)


# -- files and data ------------------------------------------------------------------------------


def _check_starts(runs: Sequence[RunSettings]) -> None:
    for start, seed in {(r.model.init_from, r.seed) for r in runs if r.model.init_from}:
        path = find_start(start, seed)
        if not path.is_file():
            file = "" if str(path) == start else f", which is the file {str(path)!r}"
            raise SpiritlevelError(
                f"The study's model.init_from must be weights that are there. Got {brief(start)}"
                f"{file}. Check the path, or run that study first."
            )


def _look(run: RunSettings) -> RunData:
    """The first samples of a run's data; what is done to every batch is tried on them."""
    data = load_data(run)
    # Copies: a part of a tensor would keep the whole of it in memory.
    look = dataclasses.replace(
        data,
        x=data.x[:SAMPLES].clone(),
        y=data.y[:SAMPLES].clone(),
        test_x=data.test_x[:SAMPLES].clone(),
        test_y=data.test_y[:SAMPLES].clone(),
        validation=None,
    )
    if run.task is None:
        classes, generator = data.num_classes, torch.Generator()
        BatchChanges(run.interventions, num_classes=classes, generator=generator)(look.x, look.y)
    return look


def _kind(look: RunData) -> str:
    """A text that is the same for data that the same networks can take."""
    return f"{look.x[0].shape}, {look.test_x[0].shape}, {look.x.dtype}, {look.num_classes}"


# -- network and data ----------------------------------------------------------------------------


def _check_fit(run: RunSettings, model: nn.Module, look: RunData) -> None:
    """Refuse a network that cannot take the samples, or has too few outputs for the classes."""
    network = f"The study's model {run.model.name!r} with {dict(run.model.arguments)}"
    parameters = inspect.signature(find_factory(run.model.name)).parameters.values()
    takes = ", ".join(f"{each.name}={each.default!r}" for each in parameters)
    parts = [(run.data.name, "training", look.x)]
    if look.test_x.shape != look.x.shape:
        parts.append((run.data.test or run.data.name, "test", look.test_x))
    for name, part, x in parts:
        shape = tuple(x.shape[1:])
        came = f"the {part} data {name!r}, {look.num_classes} classes of samples of shape {shape}"
        try:
            with torch.no_grad():
                outputs = model(x)
        except Exception as error:  # whatever torch raises for a shape that does not fit
            if is_out_of_memory(error):
                raise SpiritlevelError(
                    f"{network} needs more memory than there is, for {came}: {describe(error)}. "
                    "Choose a smaller model."
                ) from error
            raise SpiritlevelError(
                f"{network} cannot take {came}: {describe(error)}. Choose another model, or give "
                f"it the arguments for this shape; it takes {takes}."
            ) from error
        mixed = bool(run.interventions.mixup)  # its labels are shares of all classes
        enough = outputs.dim() == 2 and outputs.shape[1] >= look.num_classes
        if not enough or (mixed and outputs.shape[1] != look.num_classes):
            need = f"{'exactly' if mixed else 'at least'} {look.num_classes} outputs per sample"
            raise SpiritlevelError(
                f"{network} must have {need} for {came}. Got outputs of shape "
                f"{tuple(outputs.shape[1:])}. Set its argument for this number; it takes {takes}."
            )


def _check_penalty(run: RunSettings, model: nn.Module) -> None:
    """Refuse a penalty that this network cannot have, such as one of a layer that is not there."""
    try:
        make_penalty(model, run)
    except SpiritlevelError as error:
        raise SpiritlevelError(
            f"The study's training.penalty does not suit its model {run.model.name!r}: {error}"
        ) from error


# -- measures ------------------------------------------------------------------------------------


def _check_layers(run: RunSettings, model: nn.Module, look: RunData) -> None:
    """Layers and head as `spiritlevel.measure` looks for them, in the network before training."""
    layers, head = run.measure_options.layers, run.measure_options.head
    if not layers and not head:
        return
    options = options_of(run, model.state_dict())
    during = [run.epoch_measures or run.measures] if run.measure_every is not None else []
    try:
        for names in (run.measures, *during):
            api.preflight(
                model,
                (look.x, look.y),
                measures=names,
                options=options,
                distributed=False,
                layers=layers,
                head=head,
            )
    except SpiritlevelError as error:
        raise SpiritlevelError(
            f"The study's measure_options do not suit its model {run.model.name!r}: {error}"
        ) from error


KEY = "data"  # of the store's entry with the contents of data files


def check_data(store: Store) -> None:
    """Refuse files with other content than finished runs were made with; remember the others.

    A store without an entry (of an earlier version) gets one, and is checked from then on.
    """
    if not store.counts().remaining:
        return
    finished = {row["id"] for row in store.rows("runs") if row["status"] == "done"}
    runs = store.settings()
    used = _names(run for run in runs if run.id in finished)
    recorded: dict[str, FileContent] = store.entry(KEY) or {}
    now = {
        name: identity for name in sorted(_names(runs)) if (identity := content(name)) is not None
    }
    if now:
        forget_data()
    for name in sorted(used & recorded.keys() & now.keys()):
        if recorded[name] != now[name]:
            raise SpiritlevelError(
                f"The data {name!r} have other content than when {len(finished)} runs of the study "
                f"in {str(store.folder)!r} were made: {_described(recorded[name])} then, "
                f"{_described(now[name])} now. Restore the former data, or use --out to run the "
                "study with these in another folder."
            )
    if any(recorded[name] != now[name] for name in recorded.keys() & now.keys()):
        remove_snapshots(store.folder, store.states())  # trained in part on what is no longer there
    if recorded | now != recorded:
        store.update_entry(KEY, lambda before: (before or {}) | now)


def content(name: str) -> FileContent | None:
    """Size and checksum of what a study's data name as a path; None if they name none."""
    kind, colon, path = name.partition(":")
    if kind.lower() == "folder" and colon:
        root = pathlib.Path(os.path.expanduser(path))
        return content_of(root, _images(root))
    if name.lower().endswith(".npz") and kind.lower() not in CATALOGUE:
        path = name
    file = pathlib.Path(os.path.expanduser(path))
    return content_of(file.parent, [file] if file.is_file() else [])


def _names(runs: Iterable[RunSettings]) -> set[str]:
    """What the runs' data are called, for training and for the test."""
    given = (name for run in runs for name in (run.data.name, run.data.test))
    return {name for name in given if name is not None}


def _images(root: pathlib.Path) -> list[pathlib.Path]:
    """What the reader of image folders looks at."""
    tops = [root / split for split in SPLITS if (root / split).is_dir()] or [root]
    candidates = (file for top in tops for file in top.glob("[!.]*/[!.]*"))
    return sorted(file for file in candidates if file.suffix.lower() in ENDINGS)


def _described(identity: FileContent) -> str:
    return f"{identity['bytes']:,} bytes with SHA-256 {str(identity['sha256'])[:16]}…"
