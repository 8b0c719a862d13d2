"""`spiritlevel study figures`: every view of a study as an image file."""

from __future__ import annotations

import json as json_text
import pathlib
from typing import Annotated

import typer

from spiritlevel.cli import console, options, outputs
from spiritlevel.ground.errors import SpiritlevelError, brief
from spiritlevel.ground.files import own_folder, write_atomically

from ..population.outcome_names import TARGETS

FORMAT = "spiritlevel-figures-1"
EXAMPLES = """\b
Examples:
  spiritlevel study figures studies/digits-quick --format pdf
  spiritlevel study figures studies/digits-quick --out paper --measures 'relative.*' --colour lr
"""


def figures(
    folder: Annotated[pathlib.Path, typer.Argument(help="The folder of the study.")],
    out: Annotated[
        pathlib.Path | None, typer.Option(help="Output folder (default: FOLDER/figures).")
    ] = None,
    kind: Annotated[str, typer.Option("--format", help="png, svg or pdf.")] = "png",
    target: Annotated[
        str | None,
        typer.Option(
            help=f"What the measures are compared with: {', '.join(TARGETS)}, or an outcome of "
            "given networks (default: gap)."
        ),
    ] = None,
    measures: Annotated[
        list[str] | None, typer.Option(help="A name, or a pattern in quotes; may be repeated.")
    ] = None,
    colour: Annotated[
        str | None, typer.Option(help="The setting that gives colours (default: the first).")
    ] = None,
    json: options.Json = None,
) -> None:
    """Draw a study: measures against the gap, correlations, training, boxes, layers, bound."""
    from spiritlevel.pages import figures as plots

    from ..pages.figures import study_figures
    from ..pages.figures.columns import finished, num_runs
    from ..population import population_statistics
    from ..population.storage.store import Store

    if kind not in plots.KINDS:
        raise SpiritlevelError(
            f"The --format must be one of {', '.join(plots.KINDS)}. Got {brief(kind)}."
        )
    talk = console.talk(json)
    where = out or own_folder(folder, "figures")
    with Store.open(folder) as store:
        population = finished(store)
        target = target or population_statistics.default_target(population)
        statistics = population_statistics.statistics(population, target=target)
    chosen = study_figures(population, statistics, target=target, measures=measures, colour=colour)
    written: list[str] = []
    with console.progress("figures") as show:
        for name, draw in chosen.drawn.items():
            show(len(written), len(chosen.drawn), name)
            path = where / f"{name}.{kind}"
            write_atomically(path, plots.save(draw(), kind))
            written.append(str(path))
    for path_text in written:
        console.note(talk, f"written: {path_text}")
    for name, why in chosen.left_out.items():
        console.note(talk, f"left out: {name}: {why}")
    if unfinished := len(population.rows) - len(population.done):
        number = num_runs(unfinished)
        console.tell(talk, f"not drawn because failed or unfinished: {number}")
    result = {"format": FORMAT, "written": written, "left_out": dict(chosen.left_out)}
    outputs.write_json(talk, json, json_text.dumps(result, indent=2))
