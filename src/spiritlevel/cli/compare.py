"""`spiritlevel compare`: several checkpoints of one architecture side by side."""

from __future__ import annotations

import functools
import pathlib
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from . import console, options, outputs, pace
from .common import examples
from .termination import INTERRUPTED

if TYPE_CHECKING:
    from torch import nn

    from ..results import Comparison, Report


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
    method: options.MethodName = "auto",
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
    paths = named_paths(checkpoints)
    from ..measures.setup import Setup
    from ..verbs import comparison as comparisons
    from . import subject

    talk = console.talk(json)
    measures = asked.measures or None
    arguments: dict[str, Any] = options.arguments(on, at, asked.layers, asked.head) | {
        "method": method,
        "rtol": rtol,
        "max_passes": max_passes,
        "arithmetic": arithmetic,
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
                said = f"planned: {total} measurements, each of "
                loaded.tell_plan(talk, said, arguments | {"measures": measures})
                watch = pace.Pace()
            with pace.passes(f"measuring {name}") as arguments["progress"]:
                networks[name] = loaded.network
                measured = functools.partial(
                    comparisons.measure_for_comparison, Setup(**arguments), measures=measures
                )
                reports[name] = loaded.attempt(measured)
                loaded.describe(reports[name].settings, on.loss)
            watch.step(len(reports), total)
        result = comparisons.Comparison(reports)
        if match:
            with pace.passes("measuring at equal confidence") as arguments["progress"]:
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
            raise typer.BadParameter(
                f"The name {name!r} is given to two checkpoints: {paths[name]} and {path}. Write "
                "name=path to choose other names."
            )
        paths[name] = path
    if len(paths) < 2:
        raise typer.BadParameter(
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
