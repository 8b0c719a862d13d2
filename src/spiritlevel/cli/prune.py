"""`spiritlevel prune`: what deleting each neuron or channel does to the loss, and which can go."""

from __future__ import annotations

import pathlib
from typing import Annotated

import typer

from ..ground.errors import SpiritlevelError
from . import options
from .common import examples

MIN_PROBES = 4  # as of `verbs.pruning`, which takes torch to import


@examples("""\b
Examples:
  spiritlevel prune --model digits_cnn --checkpoint run7.safetensors --share 0.3
  spiritlevel prune --model my_nets:make --checkpoint run7.safetensors --data val.npz \\
      --layers 'layer*' --share 0.5 --plot units.png --save smaller.safetensors
""")
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
    of: options.LayerOptions,
    at: options.MachineOptions,
    json: options.Json = None,
) -> None:
    """Predict what deleting each input neuron or channel does to the loss, and choose a share."""
    if save_to is not None and share is None:
        raise SpiritlevelError(
            "The --save option needs a --share: how much should be deleted? Got none. "
            "For example --share 0.3."
        )
    from ..pages import figures
    from ..verbs.pruning import pruning
    from . import changes

    changes.run(
        pruning,
        figures.pruning,
        "units",
        network,
        on,
        of,
        at,
        save_to=save_to,
        json=json,
        share=share,
        by=by,
        fisher=by == "fisher",
        num_probes=num_probes,
    )
