"""Runs one after another in this process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ...errors import SpiritlevelError
from ..runs.results import describe
from ..runs.running import OnEpoch, run_one
from ..storage.store import Claim, Store
from .heartbeat import beating
from .live import Live, Watch, epochs_of
from .workers import new_worker


def run_here(
    store: Store,
    *,
    device: str = "cpu",
    watch: Watch | None = None,
    on_epoch: OnEpoch | None = None,
) -> None:
    """Work in this process until no run waits. Ctrl-C gives the run at hand back.

    `watch` reads the store and hears all; `on_epoch` hears of epochs alone and costs nothing.
    """
    worker = new_worker()
    live = Live(store, watch)
    while (claim := store.claim(worker)) is not None:
        with given_back(store, [claim]), beating(store, lambda c=claim: [c]):  # type: ignore[misc]
            work_on(store, claim, device=device, on_epoch=on_epoch or live.epoch)
        live.now()


def work_on(store: Store, claim: Claim, *, device: str, on_epoch: OnEpoch) -> None:
    """One run, kept as done or as failed; trouble with the store itself is not the run's fault."""
    on_epoch(0, epochs_of(claim.settings))
    try:
        result = run_one(claim.settings, device=device, on_epoch=on_epoch)
    except Exception as error:
        store.fail(claim, describe(error))
    else:
        store.finish(claim, result)


@contextlib.contextmanager
def given_back(store: Store, claims: list[Claim]) -> Iterator[None]:
    """Whatever stops the work, runs that are not ended wait again for another worker."""
    try:
        yield
    except BaseException:
        for claim in claims:
            with contextlib.suppress(SpiritlevelError):  # a full disk: the lease runs out instead
                store.release(claim)
        raise
