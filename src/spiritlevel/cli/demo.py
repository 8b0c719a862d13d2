"""`spiritlevel demo`: the whole product once, on embedded data."""

from __future__ import annotations

import json as json_text
import os
import pathlib
import time
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from . import console, subject
from . import demo_study as library
from .demo_study import Demo
from .progress import counted, duration, runs_progress

FORMAT = "spiritlevel-demo-2"
EXAMPLES = """\b
Examples:
  spiritlevel demo
  spiritlevel demo --out my-demo --workers 4
  spiritlevel demo --quick --quiet --json - | jq .lead
"""


def demo(
    out: Annotated[
        pathlib.Path, typer.Option("--out", help="The folder to write to.")
    ] = pathlib.Path("spiritlevel-demo"),
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes; one a core without it.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Train little: a look at the form, not at minima.")
    ] = False,
    json: subject.Json = None,
) -> None:
    """Train a population, measure, analyse, report.

    Small networks on handwritten digits: what each measure says about their generalization gap and
    how surely, and the audit of one of them. Under four minutes on two cores. Stopped, it goes on
    where it was.
    """
    started = time.monotonic()
    with runs_progress() as watch, console.progress("report") as show:
        found = library.run(
            out,
            preset="glance" if quick else "quick",
            workers=workers or os.cpu_count() or 1,
            watch=watch,
            progress=show,
        )
    talk = console.talk(json)
    _print(talk, found, seconds=time.monotonic() - started)
    subject.write_json(talk, json, json_text.dumps(_to_dict(found), indent=2))


def _to_dict(found: Demo) -> dict[str, object]:
    return {
        "format": FORMAT,
        "folder": str(found.folder),
        "lead": found.lead,
        "statistics": found.statistics.to_dict(),
        "audit": found.audit.to_dict(),
    }


def _print(page: Console, found: Demo, *, seconds: float) -> None:
    console.tell(page, f"{found.study.description} {counted(found.counts, None)}.")
    page.print()
    console.tell(page, found.lead, bold="")
    page.print()
    console.show(page, _correlations(found))
    console.note(
        page,
        "ρ is Spearman's, with its interval at 95 %: 1 if a larger value always goes with a larger "
        "gap between test and training loss, 0 if they have nothing to do with each other.",
    )
    page.print(f"\n[bold]What {found.audited.id} says when its weights are rescaled[/bold]")
    for name, verdict in found.audit.verdicts.items():
        if verdict.kind != "confounder":
            console.tell(page, verdict.text, mark="  • ", bold=f"{name} ")
    if console.VOLUME.get() is console.Volume.QUIET:
        return
    page.print()
    folder = found.folder
    console.tell(
        page,
        f"Open {folder / 'report.html'} and {folder / 'audit.html'} in a browser; the figures lie "
        f"beside them, the study in {folder / 'study'}. It took {duration(seconds)}. To measure "
        "one of the networks yourself:",
    )
    hidden = ",".join(map(str, found.audited.model.arguments["hidden"]))
    page.print(
        f"  spiritlevel measure --model mlp --option hidden={hidden} \\\n"
        f"      --checkpoint {found.checkpoint} --html mine.html",
        markup=False,
        soft_wrap=True,
    )


def _correlations(found: Demo) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 2, 0, 0), show_edge=False)
    table.add_column("measure", no_wrap=True)
    table.add_column("ρ with the gap", no_wrap=True, justify="right")
    table.add_column("what that says")
    rows = sorted(found.statistics.measures.values(), key=lambda row: -abs(row.spearman.value))
    for row in rows:
        table.add_row(row.name, str(row.spearman), row.verdict)
    return table
