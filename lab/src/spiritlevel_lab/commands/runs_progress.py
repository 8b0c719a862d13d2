"""The progress of a study, as text and as a bar."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from spiritlevel.cli import console
from spiritlevel.cli.pace import duration

from ..population.executors.progress import StudyStatus, Watch
from ..population.storage.store import Counts

SHORT = 10.0  # seconds; a run that started later shows no time


@contextlib.contextmanager
def runs_progress() -> Iterator[Watch]:
    """A progress bar over the runs of a study, with details and the time left."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}", markup=False),
    )
    with Progress(
        *columns, console=console.err(), transient=True, disable=not console.shows_progress()
    ) as bar:
        task = bar.add_task("runs", total=None, note="")

        def watch(now: StudyStatus) -> None:
            ended = now.done + now.failed
            bar.update(task, completed=ended, total=now.total, note=progress_text(now))

        yield watch


def progress_text(now: StudyStatus) -> str:
    """The text beside the bar.

    >>> now = StudyStatus(pending=9, running=1, done=2, epochs=((17, 60),), seconds_left=600)
    >>> progress_text(now)
    'run 3 of 12, epoch 17 of 60, 10 min left'
    """
    parts = []
    if now.running:
        parts.append(_at_work(now))
        parts.append(_how_far(now))
    if now.failed:
        parts.append(f"{now.failed} failed")
    if now.seconds_left:
        parts.append(f"{duration(now.seconds_left)} left")
    return ", ".join(filter(None, parts))


def _at_work(now: StudyStatus) -> str:
    if now.running > 1:
        return f"{now.running} running"
    return f"run {now.done + now.failed + 1} of {now.total}"


def _how_far(now: StudyStatus) -> str:
    """Epochs done; if no run reports epochs, how long the oldest run has taken."""
    if now.epochs:
        done = sorted({epoch for epoch, _ in now.epochs})
        most = max(total for _, total in now.epochs)
        if len(done) == 1:
            return f"epoch {done[0]} of {most}"
        return f"epochs {done[0]} to {done[-1]} of {most}"
    if now.oldest is None or now.oldest < SHORT:
        return ""
    return f"{'the oldest ' if now.running > 1 else ''}for {duration(now.oldest)}"


def counted(counts: Counts, left: float | None) -> str:
    """The number of runs in each state.

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
