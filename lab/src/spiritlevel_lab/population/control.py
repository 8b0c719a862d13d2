"""Start, continue and look at a study."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import runpy
import warnings
from typing import Any

from spiritlevel.ground.errors import SpiritlevelError, brief, suggestion
from spiritlevel.ground.files import as_path, check_name, own_folder, portable
from spiritlevel.inputs.data.catalogue import CATALOGUE

from .checks import check as check
from .data_identity import check_data
from .executors import local, processes, ray, vmap
from .executors.progress import Watch, seconds_left
from .registry import check_code, study_names, study_text
from .runs.training_snapshots import UNFINISHED, remove_snapshots
from .settings.definition import Study
from .storage.integrity import check_database, describe_lost, lost_checkpoints
from .storage.store import CHECKPOINTS, Counts, Store

EXECUTORS = ("local", "vmap", "ray")


def find(name_or_path: str) -> Study:
    """A registered study by name, or from a .yaml file, or `study` of a .py file."""
    path = as_path(name_or_path, what="study")
    name_or_path = str(path)
    if name_or_path in study_names():
        return Study.from_yaml(study_text(name_or_path), source=name_or_path)
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
                f"The file {name_or_path!r} must define `study`, a spiritlevel_lab.Study. "
                f"Got {brief(study)}."
            )
        return study
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpiritlevelError(
            f"The study {name_or_path!r} cannot be read as text: {error}."
        ) from error
    return dataclasses.replace(
        Study.from_yaml(text, source=repr(name_or_path)), file=path.absolute()
    )


def default_folder(name: str, preset: str | None = None) -> pathlib.Path:
    """The default folder of a study."""
    joined = "-".join(filter(None, (name, preset)))
    what = "name of the study and its preset"
    check_name(joined, what=what, advice="Rename them, or give a folder with --out.")
    return pathlib.Path("studies") / portable(joined)


def data_to_fetch(study: Study) -> dict[str, str]:
    """Public data sets that a study needs, by the key that names them."""
    needed = {}
    for run in study.runs():
        for section, settings in (("data", run.data), ("task", run.task)):
            for key, value in settings.to_dict().items() if settings is not None else ():
                if isinstance(value, str) and value in CATALOGUE:
                    needed[f"{section}.{key}"] = value
    return needed


def execute(
    store: Store,
    *,
    executor: str = "local",
    workers: int = 1,
    device: str = "cpu",
    address: str | None = None,
    per_gpu: int = 1,
    watch: Watch | None = None,
    allow_code: bool = False,
) -> Counts:
    """Execute the pending runs of a study; returns how many runs are in each state.

    Args:
        store: of the study.
        executor: "local", "vmap" (networks of one shape train together) or "ray" (a cluster).
        workers: processes for "local" and "vmap", CPUs of the cluster that "ray" starts here.
        device: "cpu", "cuda"; workers take turns on several GPUs.
        address: of the Ray cluster; None starts one on this machine.
        per_gpu: with "ray", runs that share a GPU.
        watch: called a few times per second with a `StudyStatus`.
        allow_code: run code that the study names even if it is neither written in the working
            folder nor registered by an installed package.
    """
    check_executor(executor, workers=workers, device=device, address=address, per_gpu=per_gpu)
    check_database(store)
    if store.counts().remaining:
        for name in (CHECKPOINTS, UNFINISHED):
            own_folder(store.folder, name)
        received = None if store.is_made_here else store.folder
        check_code(store.settings(), allow_code=allow_code, received=received)
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
    counts = store.counts()
    if counts.done == counts.total:
        remove_snapshots(
            store.folder, store.states()
        )  # also those of a session with another executor
    return counts


def check_executor(
    executor: str, *, workers: int, device: str, address: str | None, per_gpu: int
) -> None:
    """Raise what `execute` would raise for these arguments, which need no study."""
    if executor not in EXECUTORS:
        raise SpiritlevelError(
            f"The 'executor' must be one of {', '.join(EXECUTORS)}. Got {brief(executor)}."
            f"{suggestion(executor, EXECUTORS)}"
        )
    if workers < 1:
        raise SpiritlevelError(f"The 'workers' must be at least 1. Got {brief(workers)}.")
    if address is not None and executor != "ray":
        raise SpiritlevelError(
            f"The 'address' of a Ray cluster needs executor='ray'. Got {brief(executor)}."
        )
    ray.check_share(per_gpu, executor=executor, device=device)


def run(
    study: Study,
    folder: str | os.PathLike[str],
    *,
    preset: str | None = None,
    allow_code: bool = False,
    **how: Any,
) -> Store:
    """Run a study, or what is left of it, in `folder`; `how` and `allow_code` as for `execute`.

    Processes are started afresh: in a script, call this below `if __name__ == "__main__":`.
    """
    if not isinstance(study, Study):
        raise SpiritlevelError(
            f"The 'study' argument of run must be a spiritlevel_lab.Study. Got "
            f"{type(study).__name__}. Read a file with spiritlevel_lab.find(path)."
        )
    chosen = study if preset is None else study.with_preset(preset)
    check(chosen, allow_code=allow_code)
    store = Store.create(folder, chosen)
    try:
        execute(store, allow_code=allow_code, **how)
    except BaseException:
        store.close()
        raise
    return store


def resume(
    folder: str | os.PathLike[str], *, allow_code: bool = False, retrain: bool = False, **how: Any
) -> Store:
    """Finish the study in `folder`; failed runs are tried again; arguments as for `execute`.

    Code in `folder` itself may have come with the study, so it needs `allow_code`. Finished runs
    whose weights are missing or damaged are named in a warning, or trained again with `retrain`.
    """
    store = Store.open(folder)
    try:
        if lost := check_files(store, retrain=retrain):
            warnings.warn(lost, stacklevel=2)
        retry_failed(store, allow_code=allow_code)
        execute(store, allow_code=allow_code, **how)
    except BaseException:
        store.close()
        raise
    return store


def retry_failed(store: Store, *, allow_code: bool) -> int:
    """Let the failed runs of a store wait again, unless its code needs permission; their number."""
    check_code(store.settings(), allow_code=allow_code, received=store.folder)
    return store.retry_failed()


def check_files(store: Store, *, retrain: bool = False) -> str:
    """Refuse a damaged database; what is lost of the weights, in words, or "".

    With `retrain` the runs that lost their weights wait again instead.
    """
    check_database(store)
    store.write_definition()
    lost = lost_checkpoints(store)
    if not lost:
        return ""
    if retrain:
        store.wait_again(lost)
        return ""
    return describe_lost(store, lost)


@dataclasses.dataclass(frozen=True)
class StudyProgress:
    """The progress of a study."""

    name: str
    counts: Counts
    seconds_left: float | None  # None: no run has finished yet
    failures: tuple[tuple[str, str], ...]  # id and error

    def to_dict(self) -> dict[str, Any]:
        """A dict of plain types, ready for JSON."""
        return {
            "name": self.name,
            **dataclasses.asdict(self.counts),
            "total": self.counts.total,
            "seconds_left": self.seconds_left,
            "failures": [{"run": run, "error": error} for run, error in self.failures],
        }


def state(store: Store) -> StudyProgress:
    """Counts, failures, and an estimate of the time left from the finished runs."""
    rows = store.rows("runs")
    return StudyProgress(
        name=store.name,
        counts=store.counts(),
        seconds_left=seconds_left(rows),
        failures=tuple((r["id"], r["error"]) for r in rows if r["status"] == "failed"),
    )
