"""`spiritlevel quantize`: what rounding each weight does to the loss, and the best bit widths."""

from __future__ import annotations

import pathlib
from typing import Annotated

import typer

from ..ground.errors import SpiritlevelError, brief
from . import inputs, options
from .common import examples


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
        str, typer.Option(metavar="N,N,…", help="Widths to choose from, 2 to 16.")
    ] = "2,3,4,6,8",
    scheme: Annotated[
        str, typer.Option(metavar="NAME", help="per_tensor, per_channel or per_group.")
    ] = "per_channel",
    group_size: Annotated[
        int, typer.Option(min=1, metavar="N", help="Weights that share a scale in per_group.")
    ] = 128,
    ranges: Annotated[
        str, typer.Option(metavar="NAME", help="Scales by squared error (mse) or range (max).")
    ] = "mse",
    mean_bits: Annotated[
        float | None, typer.Option(metavar="BITS", help="Budget: bits per weight on average.")
    ] = None,
    num_bytes: Annotated[
        str | None,
        typer.Option(
            "--bytes", metavar="SIZE", help="Budget: size with scales, such as 2MiB or 500000."
        ),
    ] = None,
    save_to: Annotated[
        pathlib.Path | None,
        typer.Option(
            "--save",
            metavar="PATH",
            help="Write the rounded weights (.safetensors).",
            callback=options.unwritten,
        ),
    ] = None,
    of: options.LayerOptions,
    arithmetic: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="full, or tf32 or bf16: faster on a GPU, with fewer digits."
        ),
    ] = "full",
    at: options.MachineOptions,
    json: options.Json = None,
) -> None:
    """Predict what rounding each weight does to the loss, and choose bit widths for a budget."""
    budget = mean_bits is not None or num_bytes is not None
    if save_to is not None and not budget:
        raise SpiritlevelError(
            "The --save option needs a budget: which widths should be saved? Got neither "
            "--mean-bits nor --bytes. For example --mean-bits 4."
        )
    from ..pages import figures
    from ..verbs.quantization import quantization
    from . import changes

    changes.run(
        quantization,
        figures.quantization,
        "rounding",
        network,
        on,
        of,
        at,
        save_to=save_to,
        json=json,
        bits=_parse_bits(bits),
        scheme=scheme,
        group_size=group_size,
        ranges=ranges,
        mean_bits=mean_bits,
        bytes=None if num_bytes is None else inputs.parse_memory(num_bytes),
        arithmetic=arithmetic,
    )


def _parse_bits(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise SpiritlevelError(
            "The --bits must be whole numbers with commas between them, such as 2,4,8. "
            f"Got {brief(text)}."
        ) from None
