"""`spiritlevel prune`: what deleting each neuron or channel does to the loss, and which can go."""

from __future__ import annotations

import pathlib
from typing import Annotated

import typer
from rich.console import Console

from ..analysis.pruning import Pruning, pruning
from ..analysis.pruning.measuring import MIN_PROBES, SHARES
from ..errors import SpiritlevelError
from ..pages.figures import pruning as draw
from . import options
from .changes import ChangesCommand, LayerOptions
from .tables import print_by_name

EXAMPLES = """\b
Examples:
  spiritlevel prune --model digits_cnn --checkpoint run7.safetensors --share 0.3
  spiritlevel prune --model my_nets:make --checkpoint run7.safetensors --data val.npz \\
      --layers 'layer*' --share 0.5 --plot units.png --save smaller.safetensors
"""


def prune(
    *,
    network: options.NetworkOptions,
    on: options.DataOptions,
    share: Annotated[
        float | None,
        typer.Option(metavar="SHARE", help="How much of the weights to delete, such as 0.3."),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            metavar="RULE",
            help="joint (the default without probes), curvature, rise, magnitude, fisher, random.",
        ),
    ] = None,
    num_probes: Annotated[
        int,
        typer.Option(
            min=MIN_PROBES,
            metavar="N",
            help="Random probes per sample, for networks with more than 1,024 outputs.",
        ),
    ] = 8,
    save_to: Annotated[
        pathlib.Path | None,
        typer.Option(
            "--save",
            metavar="PATH",
            help="Write the weights, zeros where deleted.",
            callback=options.unwritten,
        ),
    ] = None,
    of: LayerOptions,
    at: options.MachineOptions,
    json: options.Json = None,
) -> None:
    """Predict what deleting each input neuron or channel does to the loss, and choose a share."""
    if save_to is not None and share is None:
        raise SpiritlevelError(
            "The --save option needs a --share: how much should be deleted? Got none. "
            "For example --share 0.3."
        )
    ChangesCommand(network, on, of, at, save_to, json, "units", "left out").run(
        pruning,
        draw,
        _tell_curves,
        share=share,
        by=by,
        fisher=by == "fisher",
        num_probes=num_probes,
    )


def _tell_curves(talk: Console, found: Pruning) -> None:
    """What the loss does as more and more is deleted, by rule."""
    rows = {
        f"by {rule}": ["" if d.measured_rise is None else f"{d.measured_rise:.2g}" for d in curve]
        for rule, curve in found.curves.items()
    }
    titles = [f"{share:.0%}" for share in SHARES]
    print_by_name(talk, "measured rise of the loss, deleted", titles, rows)
