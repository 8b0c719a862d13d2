"""`spiritlevel compare`: several checkpoints of one architecture side by side."""

from __future__ import annotations

import functools
import pathlib
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from ..ground.errors import SpiritlevelError
from . import console, inputs, options, outputs, pace
from .common import examples
from .termination import INTERRUPTED

if TYPE_CHECKING:
    from torch import nn

    from ..results import Comparison, Report
    from .subject import Subject


@examples("""\b
Examples:
  spiritlevel compare sgd.safetensors adam.safetensors --model mlp
  spiritlevel compare early=e10.pt late=e90.pt --model my_nets:make \\
      --data train.npz --json comparison.json --html comparison.html
""")
def compare(
    *,
    checkpoints: Annotated[
        list[str],
        typer.Argument(
            metavar="CHECKPOINTS...", help="Two or more: a path, or name=path to choose its name."
        ),
    ],
    model: options.Model,
    model_arg: options.ModelArguments = None,
    on: options.DataOptions,
    asked: options.MeasureOptions,
    method: Annotated[
        str,
        typer.Option(
            help="auto, exact, output_probes, sample_probes, split, hutchinson or hutch++."
        ),
    ] = "auto",
    rtol: options.Rtol = 0.05,
    max_passes: options.MaxPasses = 100,
    match: Annotated[
        bool,
        typer.Option(
            help="Also measure at equal confidence, to see how much of a difference that explains."
        ),
    ] = True,
    arithmetic: options.ArithmeticName = "full",
    at: options.MachineOptions,
    json: options.Json = None,
    html: options.Html = None,
) -> None:
    """Compare checkpoints: ranks, disagreements, and what explains them.

    Leads with the order at equal confidence; --verbose shows every measure and what explains each
    difference. Ctrl-C keeps the networks measured so far, compares those, and exits with code 130.
    """
    from ..measures.setup import Setup
    from ..verbs import comparison as comparisons
    from . import subject

    talk = console.talk(json)
    paths = named_paths(checkpoints)
    measures = asked.measures or None
    arguments: dict[str, Any] = {
        "loss": on.loss,
        "layers": inputs.one_or_many(asked.layers),
        "head": asked.head,
        "method": method,
        "rtol": rtol,
        "max_passes": max_passes,
        "memory": at.num_bytes,
        "arithmetic": arithmetic,
        "seed": at.seed,
    }
    reports: dict[str, Report] = {}
    networks: dict[str, nn.Module] = {}
    interrupted, total = False, len(paths) * (2 if match else 1)
    try:
        for name, path in paths.items():
            network = options.NetworkOptions(model=model, model_arg=model_arg, checkpoint=path)
            loaded = subject.load(network, on, at)
            arguments["options"] = loaded.options(
                asked.option, asked.measures, _counterparts(asked.measures)
            )
            if not reports:
                loaded.introduce(talk)
                _tell_plan(talk, loaded, total, measures, arguments)
                watch = pace.Pace()
            with console.progress(f"measuring {name}") as show:
                arguments["progress"] = pace.by_pass(show, f"measuring {name}")
                networks[name] = loaded.network
                measured = functools.partial(
                    comparisons.measure_for_comparison, Setup(**arguments), measures=measures
                )
                reports[name] = loaded.attempt(measured)
                loaded.describe(reports[name].settings, on.loss)
            watch.step(len(reports), total)
        result = comparisons.Comparison(reports)
        if match:
            with console.progress("measuring at equal confidence") as show:
                arguments["progress"] = pace.by_pass(show, "measuring at equal confidence")
                result = comparisons.matched_comparison(
                    Setup(**arguments), reports, networks, loaded.batches, measures
                )
    except KeyboardInterrupt:
        if len(reports) < 2:
            raise
        interrupted = True
        left = ", ".join(name for name in paths if name not in reports)
        if left:
            console.tell(console.err(), f"interrupted; left out because not measured: {left}")
        result = comparisons.Comparison(reports, unmatched="it was interrupted.")
    for name, report in result.reports.items():
        subject.detail_report(report, name)
    print_comparison(talk, result)
    outputs.write_json(talk, json, result.to_json())
    outputs.write_html(talk, html, result)
    if interrupted:
        raise typer.Exit(INTERRUPTED)


def _tell_plan(
    talk: Console,
    loaded: Subject,
    total: int,
    measures: list[str] | None,
    arguments: dict[str, Any],
) -> None:
    from ..verbs import measuring as api

    planned = loaded.attempt(api.preflight, measures=measures, **arguments)
    first, *more = str(planned).splitlines()
    console.note(talk, f"planned: {total} measurements, each of {first}")
    for line in more:
        console.note(talk, line)


def _counterparts(measures: list[str] | None) -> list[str]:
    """What is measured in addition to check the chosen measures for scale."""
    from ..verbs import comparison as comparisons
    from ..verbs import measuring as api

    twins = comparisons.counterparts()
    asked = [card for pattern in measures or ["*"] for card in api.cards(pattern)]
    return [twins[card.name] for card in asked if card.name in twins and (measures or card.default)]


def named_paths(checkpoints: list[str]) -> dict[str, str]:
    """Names from name=path, or from the file's name; each once."""
    paths: dict[str, str] = {}
    for given in checkpoints:
        name, separator, path = given.partition("=")
        if not separator:
            name, path = pathlib.Path(given).stem, given
        if name in paths:
            raise SpiritlevelError(
                f"The name {name!r} is given to two checkpoints: {paths[name]} and {path}. Write "
                "name=path to choose other names."
            )
        paths[name] = path
    if len(paths) < 2:
        raise SpiritlevelError(
            f"A comparison needs at least two checkpoints. Got {len(paths)}. Measure a single one "
            "with `spiritlevel measure`."
        )
    return paths


def print_comparison(talk: Console, result: Comparison) -> None:
    """Print the answer and the ranking, then the findings; --verbose adds all measures."""
    from . import tables

    answer, ranking, findings = result.describe()
    talk.print()
    if console.VOLUME.get() >= console.Volume.VERBOSE:
        tables.print_parts(talk, [answer, ranking, *result.describe_details()])
        return
    tables.print_parts(talk, [answer, ranking, findings])
    console.note(talk, "All measures, and what explains each difference: --verbose.")
