"""Start, continue and look at a study."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import runpy
from typing import Any

from ..errors import SpiritlevelError, suggestion
from .data.catalogue import CATALOGUE
from .executors import local, processes, ray, vmap
from .executors.live import Watch
from .executors.pace import seconds_left
from .registry import study_names, study_text
from .runs.checks import check as check
from .settings.definition import Study
from .storage.data_identity import check_data
from .storage.store import Counts, Store

EXECUTORS = ("local", "vmap", "ray")


def find(name_or_path: str) -> Study:
    """A registered study by name, or from a .yaml file, or `study` of a .py file."""
    if name_or_path in study_names():
        return Study.from_yaml(study_text(name_or_path), source=name_or_path)
    path = pathlib.Path(name_or_path)
    if not path.is_file():
        raise SpiritlevelError(
            f"The study {name_or_path!r} must be a .yaml or .py file, or one of "
            f"{', '.join(study_names())}.{suggestion(name_or_path, study_names())} "
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


def default_folder(name: str, preset: str | None = None) -> pathlib.Path:
    """Where a study is kept if nothing else is said."""
    return pathlib.Path("studies") / "-".join(filter(None, (name, preset)))


def data_to_fetch(study: Study) -> dict[str, str]:
    """Public data sets that a study needs, by the key that names them."""
    found = {}
    for run in study.runs():
        for section, settings in (("data", run.data), ("task", run.task)):
            for key, value in settings.to_dict().items() if settings is not None else ():
                if isinstance(value, str) and value in CATALOGUE:
                    found[f"{section}.{key}"] = value
    return found


def execute(
    store: Store,
    *,
    executor: str = "local",
    workers: int = 1,
    device: str = "cpu",
    address: str | None = None,
    per_gpu: int = 1,
    watch: Watch | None = None,
) -> Counts:
    """Work until no run waits; how the runs ended.

    Args:
        store: of the study.
        executor: "local", "vmap" (networks of one shape train together) or "ray" (a cluster).
        workers: processes for "local" and "vmap", CPUs of the cluster that "ray" starts here.
        device: "cpu", "cuda"; workers take turns on several GPUs.
        address: of the Ray cluster; None starts one on this machine.
        per_gpu: runs that share a GPU of the cluster; "local" and "vmap" go by `workers`.
        watch: called a few times a second with how far it is, a `Standing`.
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
    ray.check_share(per_gpu, executor=executor, device=device)
    check_data(store)
    if executor == "local" and workers == 1:
        local.run_here(store, device=device, watch=watch)
    elif executor == "vmap":
        vmap.run_together(store, workers=workers, device=device, watch=watch)
    elif executor == "ray":
        ray.run_on_cluster(
            store, address=address, workers=workers, device=device, per_gpu=per_gpu, watch=watch
        )
    else:
        worker = local.run_here
        processes.run_processes(store, worker, workers=workers, device=device, watch=watch)
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
    rows = store.rows("runs")
    return State(
        name=store.study.name,
        counts=store.counts(),
        seconds_left=seconds_left(rows),
        failures=tuple((r["id"], r["error"]) for r in rows if r["status"] == "failed"),
    )
