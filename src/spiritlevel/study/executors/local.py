"""Executes runs one after another in this process, and holds on to them meanwhile."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence

from ...errors import SpiritlevelError
from ..runs.attempts import OnEpoch, remove_snapshots_of
from ..runs.results import RunResult, failure
from ..runs.running import run_one
from ..runs.training_snapshots import UNFINISHED
from ..storage.claims import new_worker
from ..storage.store import LEASE, Claim, Store
from .progress import ProgressReporter, Watch, epochs_of

Run = Callable[..., RunResult]  # (settings, device=, on_epoch=, unfinished=): a run to its end


def run_here(
    store: Store,
    *,
    device: str = "cpu",
    watch: Watch | None = None,
    on_epoch: OnEpoch | None = None,
    run: Run = run_one,
) -> None:
    """Execute runs in this process until none is pending. Ctrl-C returns the current run.

    `watch` is called with the whole status, which reads the store; `on_epoch` with epochs only.
    `run` makes a run's result from its settings, where more is needed than these.
    """
    worker = new_worker()
    reporter = ProgressReporter(store, watch)
    while (claim := store.claim(worker)) is not None:
        with given_back(store, [claim]), beating(store, lambda c=claim: [c]):  # type: ignore[misc]
            work_on(store, claim, device=device, on_epoch=on_epoch or reporter.epoch, run=run)
        reporter.now()


def work_on(
    store: Store, claim: Claim, *, device: str, on_epoch: OnEpoch, run: Run = run_one
) -> None:
    """Execute one run and store it as done or failed; an error of the store is raised."""
    on_epoch(0, epochs_of(claim.settings))
    unfinished = store.folder / UNFINISHED
    try:
        result = run(claim.settings, device=device, on_epoch=on_epoch, unfinished=unfinished)
    except Exception as error:
        store.fail(claim, failure(error))
    else:
        store.finish(claim, result)
    remove_snapshots_of(claim.id, unfinished)


@contextlib.contextmanager
def given_back(store: Store, claims: list[Claim]) -> Iterator[None]:
    """If the block is stopped by anything, its unfinished runs become pending again."""
    try:
        yield
    except BaseException:
        for claim in claims:
            with contextlib.suppress(SpiritlevelError):  # a full disk: the lease runs out instead
                store.release(claim)
        raise


@contextlib.contextmanager
def beating(
    store: Store, claims: Callable[[], Sequence[Claim]], *, every: float = LEASE / 4
) -> Iterator[None]:
    """Keep the leases of `claims` alive; a failed heartbeat is followed by the next."""
    over = threading.Event()

    def beat() -> None:
        while not over.wait(every):
            # SQLite connections belong to the thread that made them.
            with contextlib.suppress(SpiritlevelError), Store.open(store.folder) as own_store:
                own_store.heartbeat(claims())

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
