"""`spiritlevel measure`: a network from a factory and a checkpoint, measured on a data set."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from .. import api
from . import console, options, subject, tables


def measure(
    *,
    network: options.NetworkOptions,
    on: options.DataOptions,
    asked: options.MeasureOptions,
    method: Annotated[
        str,
        typer.Option(
            help="auto, exact, output_probes, sample_probes, split, hutchinson or hutch++."
        ),
    ] = "auto",
    rtol: options.Rtol = 0.05,
    confidence: Annotated[float, typer.Option(help="Confidence level of the intervals.")] = 0.95,
    max_passes: options.MaxPasses = 100,
    arithmetic: options.ArithmeticName = "full",
    at: options.MachineOptions,
    json: options.Json = None,
    html: options.Html = None,
    per_layer: Annotated[bool, typer.Option("--per-layer", help="Also show every layer.")] = False,
) -> None:
    """Measure the flatness of a network on data.

    Prints the planned cost first and the actual cost last. The network is not changed.
    """
    talk = console.talk(json)
    arguments: dict[str, Any] = {
        "loss": on.loss,
        "measures": asked.measures or None,
        "layers": subject.one_or_many(asked.layers),
        "head": asked.head,
        "method": method,
        "rtol": rtol,
        "confidence": confidence,
        "max_passes": max_passes,
        "memory": at.num_bytes,
        "arithmetic": arithmetic,
        "seed": at.seed,
    }
    loaded = subject.load(network, on, at)
    arguments["options"] = loaded.options(asked.option, asked.measures)
    loaded.introduce(talk)
    first, *more = str(loaded.attempt(api.preflight, **arguments)).splitlines()
    console.note(talk, f"planned: {first}")
    for line in more:
        console.note(talk, line)
    console.note(talk)
    with console.progress("measuring") as show:
        arguments["progress"] = subject.by_pass(show, "measuring")
        report = loaded.attempt(api.measure, **arguments)
        loaded.describe(report.settings, on.loss)
    subject.detail_report(report)
    tables.print_parts(talk, report.describe())
    if per_layer:
        tables.print_layers(talk, report)
    subject.write_json(talk, json, report.to_json())
    subject.write_html(talk, html, report)
