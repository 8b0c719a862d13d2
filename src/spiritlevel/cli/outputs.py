"""The files that a command writes beside what it prints: --json, --plot and --html."""

from __future__ import annotations

import pathlib
import sys
from typing import TYPE_CHECKING, Any

from rich.console import Console

from ..ground.files import write_atomically
from . import console

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write_json(talk: Console, json: str | None, text: str) -> None:
    """Write to the path of --json, if given."""
    if json == "-":
        sys.stdout.write(f"{text}\n")
    elif json is not None:
        write_atomically(json, f"{text}\n".encode())
        console.note(talk, f"written: {json}")


def write_figure(talk: Console, plot: pathlib.Path, figure: Figure) -> None:
    """Write to the path of --plot."""
    from ..pages.figures import save

    write_atomically(plot, save(figure, plot.suffix[1:]))
    console.note(talk, f"written: {plot}")


def write_html(talk: Console, html: pathlib.Path | None, result: Any) -> None:
    """Write to the path of --html, if given."""
    if html is not None:
        from ..pages import report as pages

        pages.save(result, html)
        console.note(talk, f"written: {html}")
