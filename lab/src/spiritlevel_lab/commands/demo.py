"""`spiritlevel demo`: the whole product once, on embedded data."""

from __future__ import annotations

import json as json_text
import os
import pathlib
import time
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from spiritlevel.cli import console, options, outputs
from spiritlevel.cli.common import examples
from spiritlevel.cli.pace import duration

if TYPE_CHECKING:
    from .demo_study import Demo

FORMAT = "spiritlevel-demo-3"


@examples("""\b
Examples:
  spiritlevel demo
  spiritlevel demo --out my-demo --workers 4
  spiritlevel demo --quick --quiet --json - | jq .lead
""")
def demo(
    out: Annotated[pathlib.Path, typer.Option("--out", help="Output folder.")] = pathlib.Path(
        "spiritlevel-demo"
    ),
    workers: Annotated[
        int | None, typer.Option(min=1, help="Worker processes (default: one per core).")
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="Train briefly to preview the output; results are not meaningful."
        ),
    ] = False,
    json: options.Json = None,
) -> None:
    """Train a population, measure, analyse, report.

    Trains small networks on handwritten digits, shows how each measure relates to their
    generalization gap, and audits one of them. Takes under four minutes on two cores. If stopped,
    it continues where it was.
    """
    from . import demo_study
    from .runs_progress import runs_progress

    started = time.monotonic()
    with runs_progress() as watch, console.progress("report") as show:
        result = demo_study.run(
            out,
            preset="glance" if quick else "quick",
            workers=workers or os.cpu_count() or 1,
            watch=watch,
            progress=show,
        )
    talk = console.talk(json)
    _print(talk, result, seconds=time.monotonic() - started)
    outputs.write_json(talk, json, json_text.dumps(_to_dict(result), indent=2))


def _to_dict(result: Demo) -> dict[str, object]:
    from ..statistics.tables import plain

    return {
        "format": FORMAT,
        "folder": str(result.folder),
        "lead": result.answer.found,
        "statistics": result.statistics.to_dict() | {"outcomes": plain(result.answer.outcomes)},
        "audit": result.audit.to_dict(),
    }


def _print(page: Console, result: Demo, *, seconds: float) -> None:
    from .runs_progress import counted
    from .study_answers import print_answer

    console.tell(page, f"{result.study.description} {counted(result.counts, None)}.")
    page.print()
    print_answer(page, result.answer)
    page.print()
    page.print(
        Text(f"How the measures of run {result.audited.id} react to rescaled weights", "bold")
    )
    for name, verdict in result.audit.verdicts.items():
        if verdict.kind != "confounder":
            console.tell(page, verdict.text, mark="  • ", bold=f"{name} ")
    if console.VOLUME.get() is console.Volume.QUIET:
        return
    page.print()
    folder = result.folder
    console.tell(
        page,
        f"Open {folder / 'report.html'} and {folder / 'audit.html'} in a browser; the figures are "
        f"in the same folder, the study is in {folder / 'study'}. It took {duration(seconds)}. "
        "To measure one of the networks yourself:",
    )
    hidden = ",".join(map(str, result.audited.model.arguments["hidden"]))
    page.print(
        f"  spiritlevel measure --model mlp --model-arg hidden={hidden} \\\n"
        f"      --checkpoint {result.checkpoint} --html mine.html",
        soft_wrap=True,
    )
