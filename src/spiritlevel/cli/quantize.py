"""`spiritlevel quantize`: what rounding each weight does to the loss, and the best bit widths."""

from __future__ import annotations

import pathlib
from typing import Annotated, Any

import typer

from ..ground.errors import SpiritlevelError, brief
from ..inputs.checkpoints import save_checkpoint
from ..pages.figures import quantization as draw
from ..verbs.quantization import Quantization, quantization
from ..verbs.quantization.records import plan_text
from . import (
    console,
    inputs,
    options,
    subject,
)
from .common import examples
from .tables import print_by_name


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
    plot: options.Plot = None,
    layers: options.Layers = None,
    head: options.HeadName = None,
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
    talk = console.talk(json)
    budget = mean_bits is not None or num_bytes is not None
    if save_to is not None and not budget:
        raise SpiritlevelError(
            "The --save option needs a budget: which widths should be saved? Got neither "
            "--mean-bits nor --bytes. For example --mean-bits 4."
        )
    arguments: dict[str, Any] = {
        "bits": _parse_bits(bits),
        "scheme": scheme,
        "group_size": group_size,
        "ranges": ranges,
        "mean_bits": mean_bits,
        "bytes": None if num_bytes is None else inputs.parse_memory(num_bytes),
        "loss": on.loss,
        "layers": subject.one_or_many(layers),
        "head": head,
        "memory": at.num_bytes,
        "arithmetic": arithmetic,
        "seed": at.seed,
    }
    loaded = subject.load(network, on, at)
    loaded.introduce(talk)
    console.note(talk)
    with console.progress("rounding") as show:
        arguments["progress"] = subject.by_pass(show, "rounding")
        found = loaded.attempt(quantization, **arguments)
    console.details("setting", found.settings)
    _print(talk, found)
    if plot is not None:
        subject.write_figure(talk, plot, draw(found))
    if save_to is not None and found.chosen is not None:
        save_checkpoint(found.apply(loaded.network, found.chosen), save_to)
        console.note(talk, f"written: {save_to}")
    subject.write_json(talk, json, found.to_json())


def _parse_bits(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise SpiritlevelError(
            "The --bits must be whole numbers with commas between them, such as 2,4,8. "
            f"Got {brief(text)}."
        ) from None


def _print(talk: Any, found: Quantization) -> None:
    titles = ["entries", *[f"{bits} bits" for bits in found.options]]
    if found.chosen is not None:
        titles.append("best")
    rows = {}
    for name, size in found.sizes.items():
        cells = [f"{found.of(name, bits).rise:.1g}" for bits in found.options]
        chosen = [] if found.chosen is None else [str(found.chosen.bits[name])]
        rows[name] = [f"{size:,}", *cells, *chosen]
    print_by_name(talk, "rise of loss", titles, rows)
    console.note(talk, "The sampling error of every number is in --json.")
    for plan in found.uniforms:
        console.note(talk, f"uniform: {plan_text(plan)}")
    if found.chosen is not None:
        console.tell(talk, f"chosen: {plan_text(found.chosen)}")
    for name, why in found.left_out.items():
        console.note(talk, f"not rounded: {name}: {why}")
    count = int(found.settings["num_samples"])
    console.note(talk, f"counted: {found.cost.passes(count)} per sample over {count} samples")
