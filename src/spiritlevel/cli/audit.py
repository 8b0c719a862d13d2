"""`spiritlevel audit`: which flatness numbers mean anything for a network."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from . import console, options, outputs, pace
from .common import examples

STYLES = {
    "comparable": "green",
    "confidence": "green",
    "nearly": "yellow",
    "scale": "red",
    "untested": "magenta",
    "open": "magenta",
}


@examples("""\b
Examples:
  spiritlevel audit --model mlp --samples 500 --html audit.html
  spiritlevel audit --model my_nets:make --checkpoint run7.safetensors \\
      --data val.npz --measures 'relative.*' --measures curvature.trace
""")
def audit(
    *,
    network: options.NetworkOptions,
    on: options.DataOptions,
    asked: options.MeasureOptions,
    method: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="exact, output_probes, sample_probes, split, hutchinson, hutch++, or auto for "
            "traces of the Hessian. Default: traces of the GGN, which need no weight probes and "
            "move alike.",
            callback=options.among(*options.METHODS),
        ),
    ] = None,
    rtol: options.Rtol = 0.05,
    max_passes: options.MaxPasses = 100,
    budget: options.Budget = None,
    draws: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            help="Repetitions of each transformation, with different random factors.",
        ),
    ] = 3,
    at: options.MachineOptions,
    json: options.Json = None,
    html: options.Html = None,
) -> None:
    """Find out which measures can be trusted for a network.

    Finds the symmetries of the network by running it, and repeats every measure on copies that
    compute the same function with other weights. A measure that changes says nothing about the
    function. Says of each measure whether it follows scale, whether it follows confidence, and what
    could not be tested. If errors are too large to decide, lower them: `--rtol 0.02 --max-passes
    400`.
    """
    from ..verbs import audit as audits
    from ..verbs import measuring as api
    from . import subject, tables

    talk = console.talk(json)
    loaded = subject.load(network, on, at)
    loaded.introduce(talk)
    also = [] if asked.measures else [card.name for card in api.cards() if card.in_audit]
    arguments: dict[str, Any] = options.arguments(on, at, asked.layers, asked.head) | {
        "options": loaded.options(asked.option, asked.measures, also),
        "measures": asked.measures or None,
        "rtol": rtol,
        "max_passes": max_passes,
        "draws": draws,
        "budget": budget,
    }
    if method is not None:
        arguments["method"] = method

    def plan(text: str) -> None:
        console.note(talk, f"{text}. Fewer --samples, --draws or --measures take less.")

    with console.progress("auditing") as show:
        watched = pace.audited(show, plan)
        result = loaded.attempt(audits.audit, progress=watched, **arguments)
        loaded.describe(result.original.settings, on.loss)
    subject.detail_report(result.original)
    talk.print()
    tables.print_parts(talk, result.describe(), styles=STYLES)
    outputs.write_json(talk, json, result.to_json())
    outputs.write_html(talk, html, result)
