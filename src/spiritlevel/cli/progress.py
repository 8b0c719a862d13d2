"""How far a study is, in words and as a bar."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ..study.executors.local import Watch
from ..study.store import Counts
from . import console


@contextlib.contextmanager
def runs_progress() -> Iterator[Watch]:
    """A bar over the runs of a study with the time left; what is given first is the start."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
    )
    start, ended_before = time.monotonic(), -1
    with Progress(
        *columns, console=console.err(), transient=True, disable=not console.shows_progress()
    ) as bar:
        task = bar.add_task("runs", total=None, note="")

        def watch(counts: Counts) -> None:
            nonlocal ended_before
            ended = counts.done + counts.failed
            if ended_before < 0:
                ended_before = ended
            note = f"{counts.failed} failed" if counts.failed else ""
            if now := ended - ended_before:  # at the pace of this session, with all its workers
                left = (time.monotonic() - start) / now * counts.remaining
                note = ", ".join(filter(None, (note, f"{duration(left)} left")))
            bar.update(task, completed=ended, total=counts.total, note=note)

        yield watch


def counted(counts: Counts, left: float | None) -> str:
    """How many runs are in each state.

    >>> counted(Counts(done=2, failed=1), None)
    '2 of 3 runs done, 1 failed'
    """
    parts = [f"{counts.done} of {counts.total} runs done"]
    for name in ("running", "failed", "pending"):
        if number := getattr(counts, name):
            parts.append(f"{number} {name}")
    if left:
        parts.append(f"about {duration(left)} left")
    return ", ".join(parts)


def duration(seconds: float) -> str:
    """Seconds in words.

    >>> duration(7.2), duration(300), duration(9000)
    ('7 s', '5 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
