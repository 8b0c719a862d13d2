"""Heartbeats that show the store that a worker is alive, sent from a thread."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence

from spiritlevel.ground.errors import SpiritlevelError

from ..storage.store import LEASE, Claim, Store


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
