"""`spiritlevel quantize` and `spiritlevel prune`: what changes of the weights do to the loss."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..ground.errors import SpiritlevelError, brief
from . import console, inputs, options, outputs, pace
from .common import examples

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..verbs.changes import AbstractChanges


RULES = ("joint", "curvature", "rise", "magnitude", "fisher", "random")
SCHEMES = ("per_tensor", "per_channel", "per_group")
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
        typer.Option(
            metavar="SHARE",
            help="How much of the weights to delete, such as 0.3.",
            callback=options.SHARE,
        ),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            metavar="RULE",
            help="joint (the default without probes), curvature, rise, magnitude, fisher, random.",
            callback=options.among(*RULES),
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
    of: options.LayerOptions,
    at: options.MachineOptions,
    json: options.Json = None,
    html: options.Html = None,
) -> None:
    """Predict what deleting each input neuron or channel does to the loss, and choose a share."""
    if of.save_to is not None and share is None:
        raise typer.BadParameter(
            "--save needs a --share: how much should be deleted? For example --share 0.3."
        )
    from ..pages import figures
    from ..verbs.pruning import pruning

    _run(
        pruning,
        figures.pruning,
        "units",
        network,
        on,
        of,
        at,
        json=json,
        html=html,
        share=share,
        by=by,
        fisher=by == "fisher",
        num_probes=num_probes,
    )


@examples("""\b
Examples:
  spiritlevel quantize --model digits_cnn --checkpoint run7.safetensors --mean-bits 4
  spiritlevel quantize --model my_nets:make --checkpoint run7.safetensors --data val.npz \\
      --bits 3,4,8 --scheme per_group --bytes 2MiB --plot bits.png --json bits.json
""")
def quantize(
    *,
    network: options.NetworkOptions,
    on: options.DataOptions,
    bits: Annotated[
        str,
        typer.Option(
            metavar="N,N,…",
            help="Widths to choose from, 2 to 16.",
            callback=options.parsed(lambda text: _parse_bits(text)),
        ),
    ] = "2,3,4,6,8",
    scheme: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="per_tensor, per_channel or per_group.",
            callback=options.among(*SCHEMES),
        ),
    ] = "per_channel",
    group_size: Annotated[
        int, typer.Option(min=1, metavar="N", help="Weights that share a scale in per_group.")
    ] = 128,
    ranges: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Scales by squared error (mse) or range (max).",
            callback=options.among("mse", "max"),
        ),
    ] = "mse",
    mean_bits: Annotated[
        float | None, typer.Option(metavar="BITS", help="Budget: bits per weight on average.")
    ] = None,
    num_bytes: Annotated[
        str | None,
        typer.Option(
            "--bytes",
            metavar="SIZE",
            help="Budget: size with scales, such as 2MiB or 500000.",
            callback=options.parsed(inputs.parse_size),
        ),
    ] = None,
    of: options.LayerOptions,
    arithmetic: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="full, or tf32 or bf16: faster on a GPU, with fewer digits.",
            callback=options.among(*options.ARITHMETICS),
        ),
    ] = "full",
    at: options.MachineOptions,
    json: options.Json = None,
    html: options.Html = None,
) -> None:
    """Predict what rounding each weight does to the loss, and choose bit widths for a budget."""
    budget = mean_bits is not None or num_bytes is not None
    if of.save_to is not None and not budget:
        raise typer.BadParameter(
            "--save needs a budget, --mean-bits or --bytes: which widths should be saved? For "
            "example --mean-bits 4."
        )
    from ..pages import figures
    from ..verbs.quantization import quantization

    _run(
        quantization,
        figures.quantization,
        "rounding",
        network,
        on,
        of,
        at,
        json=json,
        html=html,
        bits=_parse_bits(bits),
        scheme=scheme,
        group_size=group_size,
        ranges=ranges,
        mean_bits=mean_bits,
        bytes=None if num_bytes is None else inputs.parse_size(num_bytes),
        arithmetic=arithmetic,
    )


def _parse_bits(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise SpiritlevelError(
            f"Give whole numbers with commas between them, such as 2,4,8. Got {brief(text)}."
        ) from None


def _run(
    verb: Callable[..., AbstractChanges[Any]],
    draw: Callable[[Any], Figure],
    doing: str,
    network: options.NetworkOptions,
    on: options.DataOptions,
    of: options.LayerOptions,
    at: options.MachineOptions,
    *,
    json: str | None,
    html: pathlib.Path | None,
    **own: Any,
) -> None:
    """Call `verb` with its `own` arguments too; show and write what it found.

    `doing` is what is told while it runs.
    """
    from ..inputs.checkpoints import save_checkpoint
    from . import subject, tables

    talk = console.talk(json)
    loaded = subject.load(network, on, at)
    loaded.introduce(talk)
    console.note(talk)
    with pace.passes(doing) as show:
        own |= options.arguments(on, at, of.layers, of.head)
        found = loaded.attempt(verb, **own, progress=show)
    loaded.describe(found.settings, on.loss)
    console.details("setting", found.settings)
    tables.print_parts(talk, found.describe())
    if of.plot is not None:
        outputs.write_figure(talk, of.plot, draw(found))
    if of.save_to is not None and found.chosen is not None:
        save_checkpoint(found.apply(loaded.network, found.chosen), of.save_to)
        console.note(talk, f"written: {of.save_to}")
    outputs.write_json(talk, json, found.to_json())
    outputs.write_html(talk, html, found)
