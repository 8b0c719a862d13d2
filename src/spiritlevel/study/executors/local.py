"""Executes runs one after another in this process; the session that every executor works in."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from ...errors import SpiritlevelError
from ..run_results import RunResult, failure
from ..runs.running import run_one
from ..runs.training_snapshots import UNFINISHED, OnEpoch, remove_snapshots_of
from ..storage.claims import new_worker
from ..storage.store import LEASE, Claim, Store
from .progress import ProgressReporter, Watch, epochs_of

RunOne = Callable[..., RunResult]  # (settings, device=, on_epoch=, unfinished=): a run to its end


class Session:
    """A process at work on a study: it takes runs, holds on to them, and tells how far they are.

    Args:
        store: of the study.
        device: where it computes.
        watch: called with the whole status, which reads the store.
        on_epoch: hears of epochs only, in place of `watch`.
    """

    def __init__(
        self,
        store: Store,
        *,
        device: str = "cpu",
        watch: Watch | None = None,
        on_epoch: OnEpoch | None = None,
    ) -> None:
        self.store, self.device, self.worker = store, device, new_worker()
        self.reporter = ProgressReporter(store, watch)
        self.tell = on_epoch or self.reporter.epoch

    def execute(self, claim: Claim, run: RunOne = run_one) -> None:
        """Execute one run and store it as done or failed; an error of the store is raised."""
        self.tell(0, epochs_of(claim.settings))
        unfinished = self.store.folder / UNFINISHED
        try:
            result = run(
                claim.settings, device=self.device, on_epoch=self.tell, unfinished=unfinished
            )
        except Exception as error:
            self.store.fail(claim, failure(error))
        else:
            self.store.finish(claim, result)
        remove_snapshots_of(claim.id, unfinished)

    @contextlib.contextmanager
    def holding(self, claims: list[Claim]) -> Iterator[None]:
        """Keep the leases alive of the runs that are in the list at each moment.

        A heartbeat that fails is followed by the next. If the block is stopped by anything, the
        runs that are left in the list become pending again.
        """
        over = threading.Event()

        def beat() -> None:
            while not over.wait(LEASE / 4):
                # SQLite connections belong to the thread that made them.
                with contextlib.suppress(SpiritlevelError), Store.open(self.store.folder) as own:
                    own.heartbeat(list(claims))

        thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
        thread.start()
        try:
            yield
        except BaseException:
            for claim in claims:
                with contextlib.suppress(SpiritlevelError):  # a full disk: the lease runs out
                    self.store.release(claim)
            raise
        finally:
            over.set()
            thread.join()


def run_here(
    store: Store,
    *,
    device: str = "cpu",
    watch: Watch | None = None,
    on_epoch: OnEpoch | None = None,
    run: RunOne = run_one,
) -> None:
    """Execute runs in this process until none is pending. Ctrl-C returns the current run.

    `run` makes a run's result from its settings, where more is needed than these.
    """
    session = Session(store, device=device, watch=watch, on_epoch=on_epoch)
    while (claim := store.claim(session.worker)) is not None:
        with session.holding([claim]):
            session.execute(claim, run)
        session.reporter.now()
