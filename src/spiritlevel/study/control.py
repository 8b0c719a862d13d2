"""Start, continue and look at a study."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import runpy
from importlib import resources
from typing import Any

import torch

from .. import api
from .._core import SpiritlevelError, suggestion
from ..estimators.options import as_options
from .definition import Study
from .executors import local, processes, ray, vmap
from .executors.local import Watch
from .hooks import ON_NETWORKS, BatchChanges
from .networks import build_model
from .run_data import load_data
from .settings import RunSettings
from .store import Counts, Store
from .tasks import find_task
from .transfer import find_start

EXECUTORS = ("local", "vmap", "ray")


def library_names() -> list[str]:
    """The studies that come with the package."""
    files = resources.files(f"{__package__}.library").iterdir()
    return sorted(file.name[:-5] for file in files if file.name.endswith(".yaml"))


def find(name_or_path: str) -> Study:
    """A study of the package by name, or from a .yaml file, or `study` of a .py file."""
    if name_or_path in library_names():
        file = resources.files(f"{__package__}.library").joinpath(f"{name_or_path}.yaml")
        return Study.from_yaml(file.read_text(encoding="utf-8"), source=name_or_path)
    path = pathlib.Path(name_or_path)
    if not path.is_file():
        raise SpiritlevelError(
            f"The study {name_or_path!r} must be a .yaml or .py file, or one of "
            f"{', '.join(library_names())}.{suggestion(name_or_path, library_names())} "
            f"There is no such file in {os.getcwd()!r}."
        )
    if path.suffix == ".py":
        study = runpy.run_path(str(path)).get("study")
        if not isinstance(study, Study):
            raise SpiritlevelError(
                f"The file {name_or_path!r} must define `study`, a spiritlevel.study.Study. "
                f"Got {study!r}."
            )
        return study
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpiritlevelError(
            f"The study {name_or_path!r} cannot be read as text: {error}."
        ) from error
    return Study.from_yaml(text, source=repr(name_or_path))


def check(study: Study) -> None:
    """Refuse now what would fail in every run later: models, data, measures, their options."""
    runs = study.runs()
    for name in {run.task["name"] for run in runs if run.task is not None}:
        find_task(name)
    _check_starts(runs)
    for run in {json.dumps([run.data, run.interventions]): run for run in runs}.values():
        data = load_data(run)
        BatchChanges(run.interventions, num_classes=data.num_classes, generator=torch.Generator())
    for run in {_network_of(run): run for run in runs}.values():
        if ":" not in run.model["name"]:  # what a factory of the user's costs nobody knows
            with torch.device("meta"):  # shapes only: no memory, no time
                build_model(run, "meta")
    if any(run.task is None for run in runs):  # a task may have numbers of its own
        rules = [run.stop["measure"] for run in runs if "measure" in run.stop]
        for pattern in {*(study.measures or ()), *(study.epoch_measures or ()), *rules}:
            api.measures(pattern)
    as_options(study.measure_options.get("options"))


def _network_of(run: RunSettings) -> str:
    """All that decides which network is built, apart from its random numbers."""
    changes = {name: run.interventions.get(name) for name in ON_NETWORKS}
    return json.dumps([run.model, changes, run.training.get("norm_control")])


def _check_starts(runs: list[RunSettings]) -> None:
    for start, seed in {(r.model["init_from"], r.seed) for r in runs if "init_from" in r.model}:
        path = find_start(start, seed)
        if not path.is_file():
            raise SpiritlevelError(
                f"The study's model.init_from must be weights that are there. Got {start!r}, which "
                f"is the file {str(path)!r}. Check the path, or run that study first."
            )


def execute(
    store: Store,
    *,
    executor: str = "local",
    workers: int = 1,
    device: str = "cpu",
    address: str | None = None,
    watch: Watch | None = None,
) -> Counts:
    """Work until no run waits; how the runs ended.

    Args:
        store: of the study.
        executor: "local", "vmap" (networks of one shape train together) or "ray" (a cluster).
        workers: processes for "local" and "vmap", CPUs of the cluster that "ray" starts here.
        device: "cpu", "cuda"; workers take turns on several GPUs.
        address: of the Ray cluster; None starts one on this machine.
        watch: called with the counts from time to time.
    """
    if executor not in EXECUTORS:
        raise SpiritlevelError(
            f"The 'executor' must be one of {', '.join(EXECUTORS)}. Got {executor!r}."
            f"{suggestion(executor, EXECUTORS)}"
        )
    if workers < 1:
        raise SpiritlevelError(f"The 'workers' must be at least 1. Got {workers!r}.")
    if address is not None and executor != "ray":
        raise SpiritlevelError(
            f"The 'address' is of a Ray cluster: it goes with executor 'ray'. Got {executor!r}."
        )
    if executor == "local" and workers == 1:
        local.run_here(store, device=device, watch=watch)
    elif executor == "vmap":
        vmap.run_together(store, workers=workers, device=device, watch=watch)
    elif executor == "ray":
        ray.run_on_cluster(store, address=address, workers=workers, device=device, watch=watch)
    else:
        work = local.run_here
        processes.run_processes(store, work, workers=workers, device=device, watch=watch)
    return store.counts()


def run(
    study: Study, folder: str | os.PathLike[str], *, preset: str | None = None, **how: Any
) -> Store:
    """Run a study, or what is left of it, in `folder`; `how` as for `execute`.

    Processes are started afresh: in a script, call this below `if __name__ == "__main__":`.
    """
    chosen = study if preset is None else study.with_preset(preset)
    check(chosen)
    store = Store.create(folder, chosen)
    try:
        execute(store, **how)
    except BaseException:
        store.close()
        raise
    return store


def resume(folder: str | os.PathLike[str], **how: Any) -> Store:
    """Do what is left of the study in `folder`; runs that failed are tried again."""
    store = Store.open(folder)
    try:
        store.retry_failed()
        execute(store, **how)
    except BaseException:
        store.close()
        raise
    return store


@dataclasses.dataclass(frozen=True)
class State:
    """How far a study is."""

    name: str
    counts: Counts
    seconds_left: float | None  # None: no run has finished yet
    failures: tuple[tuple[str, str], ...]  # id and error

    def to_dict(self) -> dict[str, Any]:
        """Plain types."""
        return {
            "name": self.name,
            **dataclasses.asdict(self.counts),
            "total": self.counts.total,
            "seconds_left": self.seconds_left,
            "failures": [{"run": run, "error": error} for run, error in self.failures],
        }


def state(store: Store) -> State:
    """Counts, failures, and the time left if the rest goes as what is finished went."""
    counts, rows = store.counts(), store.rows("runs")
    return State(
        name=store.study.name,
        counts=counts,
        seconds_left=seconds_left(counts, [row["seconds"] for row in rows]),
        failures=tuple((r["id"], r["error"]) for r in rows if r["status"] == "failed"),
    )


def seconds_left(counts: Counts, seconds: list[float | None]) -> float | None:
    """The remaining runs at the mean time of the finished, shared by those at work."""
    finished = [each for each in seconds if each is not None]
    if not finished:
        return None
    return counts.remaining * sum(finished) / len(finished) / max(1, counts.running)
