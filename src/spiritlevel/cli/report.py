"""`spiritlevel report`: one HTML file of what a command or a study has found."""

from __future__ import annotations

import dataclasses
import json as json_text
import pathlib
import sys
from typing import Annotated

import typer

from ..errors import SpiritlevelError
from ..files import write_atomically
from ..pages import report as pages
from ..pages.report import study as study_page
from ..study.population import Population
from ..study.population_statistics import default_target, statistics
from ..study.storage.store import Store
from . import console, subject

STANDARD_OUTPUT = "-"


def report(
    source: Annotated[
        pathlib.Path,
        typer.Argument(
            metavar="INPUT",
            help="JSON that measure, audit, compare or spectrum wrote, or a study's folder.",
        ),
    ],
    out: Annotated[
        str, typer.Option("--out", "-o", help="The file to write; - for standard output.")
    ] = "report.html",
    title: Annotated[str, typer.Option(help="The heading, such as the name of the network.")] = "",
    target: Annotated[
        str | None,
        typer.Option(help="What the measures of a study are judged by; gap unless you say else."),
    ] = None,
    confounders: subject.Confounders = None,
    confidence: subject.Confidence = None,
    json: subject.Json = None,
) -> None:
    """Write a self-contained HTML report.

    One file to open anywhere or to send: it needs no network. An existing file is replaced.
    """
    if out == json == STANDARD_OUTPUT:
        raise SpiritlevelError(
            "Only one of --out and --json can have the standard output. Give the other a file."
        )
    if out != STANDARD_OUTPUT and pathlib.Path(out).is_dir():
        raise SpiritlevelError(
            f"The --out must be a file. Got the folder {out!r}. Write --out {out}/report.html."
        )
    page = _page(source, title, target, confounders, confidence)
    html = pages.render(page).encode()
    talk = console.talk(STANDARD_OUTPUT if STANDARD_OUTPUT in (out, json) else None)
    if out == STANDARD_OUTPUT:
        sys.stdout.buffer.write(html)
    else:
        write_atomically(out, html)
        console.note(talk, f"written: {out}")
    subject.write_json(talk, json, json_text.dumps(page.to_dict(), indent=2, allow_nan=False))


def _page(
    source: pathlib.Path,
    title: str,
    target: str | None,
    confounders: list[str] | None,
    confidence: float | None,
) -> pages.Page:
    if source.is_dir():
        with console.progress("reading the study") as show, Store.open(source) as store:
            population = Population.of(store)
            chosen = target or default_target(population)
            found = statistics(
                population,
                target=chosen,
                confounders=confounders,
                confidence=0.95 if confidence is None else confidence,
            )
            page = study_page.page_of(
                store, target=chosen, population=population, statistics=found, progress=show
            )
            return dataclasses.replace(page, title=title) if title else page
    of_a_study = (("target", target), ("confounders", confounders), ("confidence", confidence))
    for name, value in of_a_study:
        if value is not None:
            raise SpiritlevelError(
                f"The --{name} is for a study's folder. Got the file {str(source)!r}. Leave it out."
            )
    return pages.page_of(pages.read(source), title=title)
