"""Where words go: results to stdout, everything else to stderr; colours only on a terminal."""

from __future__ import annotations

import contextlib
import sys
import textwrap
from collections.abc import Iterator
from typing import Protocol

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text


class Report(Protocol):
    """How far something is."""

    def __call__(self, done: float, total: float | None, text: str = "") -> None:
        """`total` is None where it is not known."""


def out() -> Console:
    """For results. Made anew each time, so that a redirected stdout is seen."""
    return Console(highlight=False, soft_wrap=False)


def err() -> Console:
    """For everything that is not the result."""
    return Console(stderr=True, highlight=False)


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


@contextlib.contextmanager
def progress(text: str) -> Iterator[Report]:
    """A bar on stderr that is gone afterwards; nothing where stderr is not a terminal."""
    console = err()
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(text, total=None)

        def report(done: float, total: float | None, text: str = text) -> None:
            bar.update(task, completed=done, total=total, description=text)

        yield report
