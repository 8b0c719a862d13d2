"""Where words go: results to stdout, everything else to stderr; colours only on a terminal.

rich leaves colours out where the output is no terminal, where TERM is dumb and where NO_COLOR is
set. How much is said is the user's choice: `--quiet` leaves results and errors, `--verbose` adds
settings, costs and times.
"""

from __future__ import annotations

import contextlib
import enum
import io
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.text import Text

from ..results import Progress


class Volume(enum.IntEnum):
    """How much is said beside the result."""

    QUIET = 0
    NORMAL = 1
    VERBOSE = 2


VOLUME: ContextVar[Volume] = ContextVar("volume", default=Volume.NORMAL)


def out() -> Console:
    """For results. Made anew each time, so that a redirected stdout is seen."""
    return Console(highlight=False, soft_wrap=False)


def err() -> Console:
    """For everything that is not the result."""
    return Console(stderr=True, highlight=False)


def talk(json: str | None) -> Console:
    """Where a command speaks: stdout, unless `--json -` has that for itself.

    Then it is stderr; with --quiet nowhere, since the result is said already.
    """
    if json == "-" and VOLUME.get() is Volume.QUIET:
        return Console(file=io.StringIO())
    return err() if json == "-" else out()


def say_error(text: str) -> None:
    """One line, whatever the width of the terminal."""
    line = " ".join(text.split())
    print(f"error: {line}", file=sys.stderr, flush=True)


def show(console: Console, *parts: RenderableType) -> None:
    """Print without the blanks that rich pads lines with."""
    with console.capture() as captured:
        console.print(*parts)
    for line in captured.get().splitlines():
        console.file.write(f"{line.rstrip()}\n")


def tell(console: Console, text: str, *, mark: str = "", bold: str = "") -> None:
    """A paragraph that hangs below its `mark`, at most 100 wide; `bold` is how it starts."""
    width = min(console.width, 100)
    lines = textwrap.fill(
        bold + text, width, initial_indent=mark, subsequent_indent=" " * len(mark)
    )
    page = Text(lines)
    page.stylize("bold", len(mark), len(mark) + len(bold))
    console.print(page, soft_wrap=True)


def note(console: Console, text: str = "") -> None:
    """What is good to know beside the result: a paragraph that --quiet leaves out."""
    if VOLUME.get() >= Volume.NORMAL:
        tell(console, text)


def detail(text: str) -> None:
    """One line on stderr that only --verbose asks for."""
    if VOLUME.get() >= Volume.VERBOSE:
        err().print(text, markup=False, soft_wrap=True)


def details(heading: str, facts: Mapping[str, Any]) -> None:
    """Names with values, one line each, for --verbose."""
    for name, value in facts.items():
        detail(f"{heading}: {name} = {value}")


@contextlib.contextmanager
def timed(what: str) -> Iterator[None]:
    """Say with --verbose how long it took."""
    start = time.monotonic()
    yield
    detail(f"time: {what} took {time.monotonic() - start:.2f} s")


@contextlib.contextmanager
def progress(text: str) -> Iterator[Progress]:
    """A bar on stderr that is gone afterwards; nothing where stderr is not a terminal."""
    console = err()
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with (
        timed(text),
        Bars(*columns, console=console, transient=True, disable=not shows_progress()) as bars,
    ):
        task = bars.add_task(text, total=None)

        def report(done: int, total: int | None, what: str) -> None:
            bars.update(task, completed=done, total=total, description=what)

        yield report


def shows_progress() -> bool:
    """Whether a bar would be seen, and is wanted."""
    return err().is_terminal and VOLUME.get() > Volume.QUIET
