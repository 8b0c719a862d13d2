"""A sign of life while runs are worked on, from a thread of its own."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence

from ...errors import SpiritlevelError
from ..storage.store import LEASE, Claim, Store


@contextlib.contextmanager
def beating(
    store: Store, claims: Callable[[], Sequence[Claim]], *, every: float = LEASE / 4
) -> Iterator[None]:
    """Keep the leases of `claims` alive; a beat that fails is tried again at the next."""
    over = threading.Event()

    def beat() -> None:
        while not over.wait(every):
            # A connection belongs to the thread that made it.
            with contextlib.suppress(SpiritlevelError), Store.open(store.folder) as own:
                own.heartbeat(claims())

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
