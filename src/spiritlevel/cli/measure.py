"""`spiritlevel measure`: a network from a factory and a checkpoint, measured on a data set."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from .. import api
from . import console, inputs, subject, tables


def measure(
    model: subject.Model,
    model_arg: subject.ModelArguments = None,
    checkpoint: subject.Checkpoint = None,
    data: subject.Data = "digits",
    split: subject.Split = "train",
    samples: subject.Samples = None,
    batch_size: subject.BatchSize = 256,
    loss: subject.LossName = "cross_entropy",
    measures: subject.Measures = None,
    option: subject.Options = None,
    layers: subject.Layers = None,
    head: subject.HeadName = None,
    method: Annotated[
        str,
        typer.Option(
            help="auto, exact, output_probes, sample_probes, split, hutchinson or hutch++."
        ),
    ] = "auto",
    rtol: subject.Rtol = 0.05,
    confidence: Annotated[float, typer.Option(help="Confidence level of the intervals.")] = 0.95,
    max_passes: subject.MaxPasses = 100,
    memory: subject.Memory = None,
    device: subject.Device = "cpu",
    dtype: subject.Dtype = "float32",
    arithmetic: subject.ArithmeticName = "full",
    seed: subject.Seed = 0,
    json: subject.Json = None,
    html: subject.Html = None,
    per_layer: Annotated[bool, typer.Option("--per-layer", help="Also show every layer.")] = False,
) -> None:
    """Measure the flatness of a network on data.

    Prints the planned cost first and the actual cost last. The network is not changed.
    """
    talk = console.talk(json)
    arguments: dict[str, Any] = {
        "loss": loss,
        "measures": measures or None,
        "layers": subject.one_or_many(layers),
        "head": head,
        "method": method,
        "rtol": rtol,
        "confidence": confidence,
        "max_passes": max_passes,
        "memory": None if memory is None else inputs.parse_memory(memory),
        "arithmetic": arithmetic,
        "seed": seed,
    }
    loaded = subject.load(
        model=model,
        model_arg=model_arg,
        checkpoint=checkpoint,
        data=data,
        split=split,
        samples=samples,
        batch_size=batch_size,
        device=device,
        dtype=dtype,
        seed=seed,
    )
    arguments["options"] = loaded.options(option, measures)
    loaded.introduce(talk)
    first, *more = str(loaded.attempt(api.preflight, **arguments)).splitlines()
    console.note(talk, f"planned: {first}")
    for line in more:
        console.note(talk, line)
    console.note(talk)
    with console.progress("measuring") as show:
        arguments["progress"] = subject.by_pass(show, "measuring")
        report = loaded.attempt(api.measure, **arguments)
        loaded.describe(report.settings, loss=loss)
    subject.detail_report(report)
    tables.print_report(talk, report)
    if per_layer:
        tables.print_layers(talk, report)
    subject.write_json(talk, json, report.to_json())
    subject.write_html(talk, html, report)
