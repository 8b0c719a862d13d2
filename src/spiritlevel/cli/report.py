"""`spiritlevel report`: an HTML page from the JSON of a command or from a study."""

from __future__ import annotations

import json as json_text
import pathlib
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from ..ground.files import write_atomically
from . import console, options, outputs
from .common import examples

if TYPE_CHECKING:
    from ..pages.report import Page

STANDARD_OUTPUT = "-"


@examples("""\b
Examples:
  spiritlevel measure --model mlp --json measured.json
  spiritlevel report measured.json
  spiritlevel report comparison.json --out comparison.html --title 'SGD and Adam'
  spiritlevel report studies/digits-quick --out study.html
""")
def report(
    source: Annotated[
        pathlib.Path,
        typer.Argument(
            metavar="INPUT",
            help="JSON that a command wrote, or a study's folder.",
        ),
    ],
    out: Annotated[
        str, typer.Option("--out", "-o", help="Output file; - for stdout.")
    ] = "report.html",
    title: Annotated[str, typer.Option(help="The heading, such as the name of the network.")] = "",
    target: Annotated[
        str | None,
        typer.Option(help="For a study: what the measures are compared with (default: gap)."),
    ] = None,
    confounders: options.Confounders = None,
    confidence: options.Confidence = None,
    json: options.Json = None,
) -> None:
    """Write a self-contained HTML report.

    One file that opens anywhere, without a network connection. An existing file is replaced only
    with --overwrite.
    """
    if out == json == STANDARD_OUTPUT:
        raise typer.BadParameter(
            "Only one of --out and --json can be stdout. Give a file for the other."
        )
    if out != STANDARD_OUTPUT and pathlib.Path(out).is_dir():
        raise typer.BadParameter(
            f"The --out must be a file. Got the folder {out!r}. Write --out {out}/report.html."
        )
    console.free(out)
    from ..pages.report import render

    page = _page(source, title, target, confounders, confidence)
    html = render(page).encode()
    talk = console.talk(STANDARD_OUTPUT if STANDARD_OUTPUT in (out, json) else None)
    if out == STANDARD_OUTPUT:
        sys.stdout.buffer.write(html)
    else:
        write_atomically(out, html)
        console.note(talk, f"written: {out}")
    outputs.write_json(talk, json, json_text.dumps(page.to_dict(), indent=2, allow_nan=False))


def _page(
    source: pathlib.Path,
    title: str,
    target: str | None,
    confounders: list[str] | None,
    confidence: float | None,
) -> Page:
    from ..pages import report as pages

    if source.is_dir():
        chosen = {"target": target, "confounders": confounders, "confidence": confidence}
        with console.progress("reading the study") as show:
            return pages.page_of_folder(source, title=title, progress=show, **chosen)
    of_a_study = (("target", target), ("confounders", confounders), ("confidence", confidence))
    for name, value in of_a_study:
        if value is not None:
            raise typer.BadParameter(
                f"--{name} needs a study's folder. Got the file {str(source)!r}. Leave it out."
            )
    return pages.page_of(pages.read(source), title=title)
