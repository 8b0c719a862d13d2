"""Runs one after another in this process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from ..._core import SpiritlevelError
from ..running import run_one
from ..store import Claim, Counts, Store
from ..workers import new_worker
from .heartbeat import beating

Watch = Callable[[Counts], None]


def run_here(store: Store, *, device: str = "cpu", watch: Watch | None = None) -> None:
    """Work in this process until no run waits. Ctrl-C gives the run at hand back."""
    worker = new_worker()
    while (claim := store.claim(worker)) is not None:
        with given_back(store, [claim]), beating(store, lambda c=claim: [c]):  # type: ignore[misc]
            work_on(store, claim, device=device)
        if watch is not None:
            watch(store.counts())


def work_on(store: Store, claim: Claim, *, device: str) -> None:
    """One run, kept as done or as failed; trouble with the store itself is not the run's fault."""
    try:
        result = run_one(claim.settings, device=device)
    except Exception as error:
        store.fail(claim, describe(error))
    else:
        store.finish(claim, result)


def describe(error: BaseException) -> str:
    """One line for the store."""
    text = " ".join(str(error).split())
    return text if isinstance(error, SpiritlevelError) else f"{type(error).__name__}: {text}"


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
