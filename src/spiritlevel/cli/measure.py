"""`spiritlevel measure`: a network from a factory and a checkpoint, measured on a data set."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from . import console, options, outputs, pace
from .common import examples


@examples("""\b
Examples:
  spiritlevel measure --model mlp
  spiritlevel measure --model my_nets:make --model-arg width=32 \\
      --checkpoint run7.safetensors --data val.npz --measures 'relative.*,head.kappa'
  spiritlevel measure --model mlp --html report.html
  spiritlevel measure --model mlp --json - | jq .measures
""")
def measure(
    *,
    network: options.NetworkOptions,
    on: options.DataOptions,
    asked: options.MeasureOptions,
    method: options.MethodName = "auto",
    rtol: options.Rtol = 0.05,
    confidence: Annotated[
        float, typer.Option(help="Confidence level of the intervals.", callback=options.SHARE)
    ] = 0.95,
    max_passes: options.MaxPasses = 100,
    budget: options.Budget = None,
    arithmetic: options.ArithmeticName = "full",
    at: options.MachineOptions,
    json: options.Json = None,
    html: options.Html = None,
    per_layer: Annotated[bool, typer.Option("--per-layer", help="Also show every layer.")] = False,
) -> None:
    """Measure the flatness of a network on data.

    Prints the planned cost first and the actual cost last. The network is not changed.
    """
    from ..verbs import measuring as api
    from . import subject, tables

    talk = console.talk(json)
    arguments: dict[str, Any] = options.arguments(on, at, asked.layers, asked.head) | {
        "measures": asked.measures or None,
        "method": method,
        "rtol": rtol,
        "confidence": confidence,
        "max_passes": max_passes,
        "budget": budget,
        "arithmetic": arithmetic,
    }
    loaded = subject.load(network, on, at)
    arguments["options"] = loaded.options(asked.option, asked.measures)
    loaded.introduce(talk)
    loaded.tell_plan(talk, "planned: ", arguments)
    console.note(talk)
    with pace.passes("measuring") as arguments["progress"]:
        report = loaded.attempt(api.measure, **arguments)
        loaded.describe(report.settings, on.loss)
    subject.detail_report(report)
    tables.print_parts(talk, report.describe())
    if per_layer:
        tables.print_layers(talk, report)
    outputs.write_json(talk, json, report.to_json())
    outputs.write_html(talk, html, report)
