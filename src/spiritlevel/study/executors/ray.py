"""Runs on the machines of a Ray cluster.

The driver alone opens the store: it claims runs, sends their settings out, and keeps what comes
back. Ray may start a task again when its worker is lost; only one result of it reaches the driver.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from ..._core import SpiritlevelError, require
from ..results import RunResult
from ..running import run_one
from ..settings import RunSettings
from ..store import Claim, Store
from ..workers import new_worker
from .heartbeat import beating
from .local import Watch, describe, given_back

RETRIES = 3  # of a run whose worker was lost
AHEAD = 2  # runs sent out for each processor, so that none waits for the driver
PATIENCE = 1.0  # seconds between looks at what came back


def run_on_cluster(
    store: Store,
    *,
    address: str | None = None,
    workers: int = 1,
    device: str = "cpu",
    watch: Watch | None = None,
) -> None:
    """Work on a cluster until no run waits; without an address, on one with `workers` CPUs here."""
    ray: Any = require("ray", what="The ray executor", extra="ray")
    out: dict[Any, Claim] = {}  # by Ray's reference to the result that will come
    worker = new_worker()
    with _connected(ray, address, workers):
        room = AHEAD * max(1, int(ray.cluster_resources().get("CPU", 1)))
        gpus = 1 if device.startswith("cuda") else 0
        task = ray.remote(max_retries=RETRIES, num_cpus=1, num_gpus=gpus)(run_remotely)
        claims: list[Claim] = []
        with given_back(store, claims), beating(store, lambda: list(claims)):
            while True:
                while len(out) < room and (claim := store.claim(worker)) is not None:
                    claims.append(claim)
                    out[task.remote(claim.settings, device, os.getcwd())] = claim
                if not out:
                    return
                for reference in ray.wait(list(out), timeout=PATIENCE)[0]:
                    claim = out.pop(reference)
                    _keep(ray, store, claim, reference)
                    claims.remove(claim)
                if watch is not None:
                    watch(store.counts())


def run_remotely(settings: RunSettings, device: str, folder: str) -> RunResult | str:
    """The result, or why there is none: an error of the run is not one of its worker."""
    with contextlib.suppress(OSError):  # models of the user's are looked for in the driver's folder
        os.chdir(folder)
    try:
        return run_one(settings, device=device)
    except Exception as error:
        return describe(error)


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
    """In a cluster; one that was started here is stopped again, and takes its tasks with it."""
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
