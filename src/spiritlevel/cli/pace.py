"""How much a long command has to do, and how long that will take, said while it runs.

A bar shows the time left on a terminal. Elsewhere, in a log or a notebook, one line says it after
the first step has been timed.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from . import console

if TYPE_CHECKING:
    from ..results import Progress

WORTH_SAYING = 20.0  # seconds left below which nobody plans anything


class Pace:
    """The time that steps of about the same length still take, said once, after the first."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.start = clock()
        self.said = False

    def step(self, done: int, total: int) -> None:
        """Tell that `done` of `total` steps are done."""
        if self.said or done < 1 or done >= total:
            return
        self.said = True
        left = (self.clock() - self.start) / done * (total - done)
        if left >= WORTH_SAYING:
            console.note(console.err(), f"{done} of {total} done; about {duration(left)} left")


def audited(show: Progress, plan: Callable[[str], None]) -> Progress:
    """Progress of an audit; `plan` is told what it will take, once that is known."""
    pace: Pace | None = None

    def report(done: int, total: int | None, what: str) -> None:
        nonlocal pace
        if total is not None and done >= 1:
            if pace is None:  # the symmetries are found: their copies are measured from now on
                plan(what)
                pace = Pace()
            else:
                pace.step(done - 1, total - 1)
        show(done, total, what)

    return report


def by_pass(show: Progress, text: str) -> Progress:
    """Progress that starts again with each pass over the data and shows the pass number."""
    last, passes = -1, 1

    def report(done: int, total: int | None, what: str) -> None:
        nonlocal last, passes
        if done <= last:
            passes += 1
        last = done
        show(done, total, text if passes == 1 else f"{text}, pass {passes}")

    return report


@contextlib.contextmanager
def passes(text: str) -> Iterator[Progress]:
    """A progress bar that starts again with each pass over the data."""
    with console.progress(text) as show:
        yield by_pass(show, text)


def duration(seconds: float) -> str:
    """Seconds as text.

    >>> duration(7.2), duration(300), duration(9000)
    ('7 s', '5 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
