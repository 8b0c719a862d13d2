"""Executes runs on a Ray cluster.

Only the driver opens the store: it claims runs, sends out their settings and stores the results.
Ray may restart a task if its worker is lost; only one result reaches the driver.
"""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Iterator
from typing import Any

from ...engine.memory import share_gpu
from ...errors import SpiritlevelError, require
from ..models.registry import is_own
from ..run_results import RunResult, describe, failure
from ..runs.machine import TF32
from ..runs.running import run_one
from ..settings.run import RunSettings
from ..storage.store import Claim, Store
from .local import Session
from .progress import Watch

RETRIES = 3  # of a run whose worker was lost
AHEAD = 2  # runs sent out per processor, so that none waits for the driver
PATIENCE = 1.0  # seconds between checks for results


def run_on_cluster(
    store: Store,
    *,
    address: str | None = None,
    workers: int = 1,
    device: str = "cpu",
    per_gpu: int = 1,
    watch: Watch | None = None,
) -> None:
    """Execute runs on a cluster until none is pending.

    Without an address, a cluster with `workers` CPUs is started on this machine. `per_gpu` runs
    share a GPU; each also needs a processor.
    """
    ray: Any = require("ray", what="The ray executor", extra="ray")
    out: dict[Any, Claim] = {}  # by Ray's reference to the result that will come
    session = Session(store, watch=watch)
    with _connected(ray, address, workers):
        has = ray.cluster_resources()
        room = AHEAD * max(1, int(has.get("CPU", 1)))
        gpus = 1 / per_gpu if device.startswith("cuda") else 0
        if gpus and not has.get("GPU"):  # Ray would wait for one silently
            raise SpiritlevelError(
                f"The device {device!r} needs a GPU, and the Ray cluster has none now. Start a "
                "machine with one (`ray start --address ... --num-gpus 1`), or use device 'cpu'."
            )
        task = ray.remote(max_retries=RETRIES, num_cpus=1, num_gpus=gpus)(run_remotely)
        where = (device, os.getcwd(), TF32.of_this_process(), per_gpu)
        claims: list[Claim] = []
        with session.holding(claims):
            while True:
                while len(out) < room and (claim := store.claim(session.worker)) is not None:
                    claims.append(claim)
                    out[task.remote(claim.settings, *where)] = claim
                if not out:
                    return
                for reference in ray.wait(list(out), timeout=PATIENCE)[0]:
                    claim = out.pop(reference)
                    _keep(ray, store, claim, reference)
                    claims.remove(claim)
                session.reporter.now()  # without epochs: the cluster reports whole runs only


def check_share(per_gpu: int, *, executor: str, device: str) -> None:
    """Raise for a `per_gpu` that would have no effect."""
    if per_gpu < 1:
        raise SpiritlevelError(f"The 'per_gpu' must be at least 1. Got {per_gpu!r}.")
    if per_gpu > 1 and not (executor == "ray" and device.startswith("cuda")):
        raise SpiritlevelError(
            "The 'per_gpu' is the number of runs that share a GPU of a Ray cluster. It needs "
            f"executor='ray' and device='cuda'. Got {per_gpu!r} with {executor!r} and {device!r}. "
            "On one machine the workers share the GPUs: set 'workers'."
        )


def run_remotely(
    settings: RunSettings, device: str, folder: str, tf32: TF32, sharing: int
) -> RunResult | str:
    """The result, or the error text: an error of the run is not an error of its worker."""
    tf32.use()
    share_gpu(sharing)
    try:
        _enter(folder, settings)
        return run_one(settings, device=device)
    except Exception as error:
        return failure(error)


def _enter(folder: str, settings: RunSettings) -> None:
    """Change to the folder in which the driver was started, where user modules and files are.

    A run that names no such file does not need it. For others it must exist: a file of the same
    name in Ray's own folder might be a different one.
    """
    try:
        os.chdir(folder)
    except OSError as error:
        if names := files_named(settings):
            raise SpiritlevelError(
                f"The folder {folder!r}, in which the study was started, must be on every machine "
                f"of the cluster: this run names {', '.join(map(repr, names))}. On "
                f"{platform.node()!r} it cannot be entered: {error.strerror or error}. Put it on a "
                "file system that all machines share, or copy it to the same path on each, and "
                "resume the study."
            ) from error


def files_named(settings: RunSettings) -> list[str]:
    """User modules, data and weights that are looked up in the working folder."""
    task = None if settings.task is None else settings.task.name
    given = [settings.model.name, task, settings.data.name]
    given += [settings.data.test, settings.model.init_from]
    if settings.training.penalty is not None:
        given.append(settings.training.penalty.name)
    return [
        name
        for name in given
        if name is not None
        and (":" in name or name.lower().endswith(".npz") or name == settings.model.init_from)
        and not (name == settings.model.name and is_own(name))
        and not os.path.isabs(os.path.expanduser(_place(name)))
    ]


def _place(name: str) -> str:
    """What stands behind 'folder:' or 'mnist:'; one letter and a colon are a drive of Windows."""
    kind, colon, rest = name.partition(":")
    return rest if colon and len(kind) > 1 else name


def _keep(ray: Any, store: Store, claim: Claim, reference: Any) -> None:
    try:
        result = ray.get(reference)
    except ray.exceptions.WorkerCrashedError:
        store.fail(claim, f"Its worker was lost {RETRIES + 1} times. Was there enough memory?")
        return
    except ray.exceptions.RayError as error:
        store.fail(claim, f"Ray could not run it: {describe(error)}")
        return
    if isinstance(result, str):
        store.fail(claim, result)
    else:
        store.finish(claim, result)


@contextlib.contextmanager
def _connected(ray: Any, address: str | None, workers: int) -> Iterator[None]:
    """Connect to a cluster; one that was started here is stopped at the end, with its tasks."""
    if ray.is_initialized():
        yield
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray's later default for GPUs, and the silence about it.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address is None:
        options |= {"address": "local", "num_cpus": workers, "include_dashboard": False}
    else:
        options["address"] = address
    try:
        ray.init(**options)
    except (ConnectionError, ValueError, RuntimeError) as error:
        cause = " ".join(str(error).split()).rstrip(".")
        raise SpiritlevelError(
            f"The Ray cluster at {address!r} cannot be reached: {cause}. Start it with "
            "`ray start --head` and give the address it names, or leave --address out."
        ) from error
    try:
        yield
    finally:
        ray.shutdown()
