"""`spiritlevel study preflight`: which correlations a study could see, before it runs."""

from __future__ import annotations

import dataclasses
import json as json_text
from typing import Annotated, Any

import typer

from spiritlevel.cli import console, inputs, options, outputs

FORMAT = "spiritlevel-preflight-1"
EXAMPLES = """\b
Examples:
  spiritlevel study preflight digits --preset quick
  spiritlevel study preflight my_study.yaml --set seeds=5
"""


def preflight(
    study: Annotated[
        str,
        typer.Argument(help="A .yaml or .py file, or a name that `spiritlevel study list` shows."),
    ],
    preset: Annotated[
        str | None, typer.Option(help="One of the study's presets, such as quick.")
    ] = None,
    values: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change a setting, such as seeds=5; may be repeated."),
    ] = None,
    json: options.Json = None,
) -> None:
    """Show which true correlations a study could see, from its settings and seeds.

    By simulation, before anything is trained: over all runs and within settings, with power 0.8.
    """
    from ..population import control, population_statistics

    chosen = control.find(study)
    if preset is not None:
        chosen = chosen.with_preset(preset)
    chosen = chosen.with_values(inputs.parse_pairs(values or [], "--set seeds=5"))
    found = population_statistics.preflight(chosen)
    talk = console.talk(json)
    console.tell(talk, found.sentence)
    result: dict[str, Any] = {"format": FORMAT, **dataclasses.asdict(found)}
    outputs.write_json(talk, json, json_text.dumps(result, indent=2))
