"""Tests that start a Ray cluster on this machine, or look for one, take turns: `auto` finds any."""

import contextlib
import fcntl
import pathlib
import tempfile
from collections.abc import Iterator

LOCK = pathlib.Path(tempfile.gettempdir()) / "spiritlevel-tests-ray.lock"


@contextlib.contextmanager
def ray_turn() -> Iterator[None]:
    """Wait until no other process of these tests has a cluster."""
    with LOCK.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
