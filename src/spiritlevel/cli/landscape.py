"""`spiritlevel landscape`: the loss along a line or a plane through a network's weights."""

from __future__ import annotations

import copy
import pathlib
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from . import console, options, outputs, pace
from .common import examples

if TYPE_CHECKING:
    from torch import nn

    from ..verbs.landscape import Landscape
    from .subject import Subject


@examples("""\b
Examples:
  spiritlevel landscape --model mlp --checkpoint a.safetensors --plot slice.png
  spiritlevel landscape --model mlp --checkpoint a.safetensors --directions eigen \\
      --dimensions 2 --cache slice.jsonl --plot map.pdf
  spiritlevel landscape --model mlp --checkpoint a.safetensors --to b.safetensors \\
      --plot between.svg --json between.json
""")
def landscape(
    *,
    network: options.NetworkOptions,
    to: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH", help="Another checkpoint: the line to it, or with two of them a plane."
        ),
    ] = None,
    directions: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="random (default) or eigen; not with --to.",
            callback=options.among("random", "eigen"),
        ),
    ] = None,
    dimensions: Annotated[
        int | None,
        typer.Option(
            min=1, max=2, metavar="N", help="1 for a line, 2 for a plane.", show_default="1"
        ),
    ] = None,
    points: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Points along each axis.", show_default="41, or 21 in a plane"
        ),
    ] = None,
    reach: Annotated[
        float | None,
        typer.Option(
            "--range",
            metavar="R",
            help="How far to go in both directions, or with --to beyond the checkpoints.",
            show_default="1, with --to 0.5",
        ),
    ] = None,
    biases: Annotated[
        bool, typer.Option("--biases", help="Let random directions change biases and norms too.")
    ] = False,
    on: options.DataOptions,
    layers: options.Layers = None,
    head: options.HeadName = None,
    max_passes: Annotated[
        int, typer.Option(min=1, metavar="N", help="Most Hessian products for --directions eigen.")
    ] = 200,
    plot: Annotated[
        pathlib.Path | None,
        typer.Option(
            metavar="PATH",
            help="Draw the slice: .png, .svg or .pdf.",
            callback=options.drawable,
        ),
    ] = None,
    cache: Annotated[
        pathlib.Path | None,
        typer.Option(
            metavar="PATH", help="Save finished points here, and continue from them the next time."
        ),
    ] = None,
    at: options.MachineOptions,
    json: options.Json = None,
    html: options.Html = None,
) -> None:
    """Evaluate the loss along a line or a plane through the weights, and draw it.

    With --cache, Ctrl-C keeps the finished points and the same command continues.
    """
    from ..verbs.landscape import num_points
    from . import subject, tables

    talk = console.talk(json)
    loaded = subject.load(network, on, at)
    loaded.introduce(talk)
    others = [_other(talk, loaded.network, path) for path in to or []]
    count = num_points(
        dimensions=dimensions or len(others) or 1, points=points, reach=reach, path=bool(others)
    )
    console.note(talk, _planned(loaded, count, eigen=directions == "eigen"))
    arguments: dict[str, Any] = options.arguments(on, at, layers, head) | {
        "directions": directions,
        "to": others,
        "names": _names([network.checkpoint or network.model, *(to or [])]),
        "dimensions": dimensions,
        "points": points,
        "reach": reach,
        "biases": biases,
        "max_passes": max_passes,
        "cache": cache,
    }
    result = _run(loaded, arguments)
    loaded.describe(result.settings, on.loss)
    console.note(talk)
    tables.print_parts(talk, result.describe())
    if plot is not None:
        from ..pages.figures.landscapes import landscape as draw

        outputs.write_figure(talk, plot, draw(result).figure)  # type: ignore[arg-type]
    outputs.write_json(talk, json, result.to_json())
    outputs.write_html(talk, html, result)


def _other(talk: Console, network: nn.Module, path: str) -> nn.Module:
    """Another checkpoint of the same network."""
    from ..inputs.checkpoints import load_checkpoint

    other = copy.deepcopy(network)
    console.note(talk, f"to: {load_checkpoint(other, path)}")
    return other


def _planned(loaded: Subject, count: int, *, eigen: bool) -> str:
    """What it will cost, before it starts."""
    samples = sum(len(y) for _, y in loaded.batches)
    first = ", after the Hessian products that find the directions" if eigen else ""
    return f"planned: {count} points, one forward per point and sample ({samples} samples){first}"


def _run(loaded: Subject, arguments: dict[str, Any]) -> Landscape:
    from ..verbs import landscape as landscapes

    try:
        with pace.passes("landscape") as arguments["progress"]:
            result: Landscape = loaded.attempt(landscapes.landscape, **arguments)
            return result
    except KeyboardInterrupt:
        cache = arguments["cache"]
        text = (
            "Finished points are lost. Next time, give --cache PATH to keep them."
            if cache is None
            else f"Finished points are kept in {cache}. Run the same command again to continue."
        )
        console.err().print(text, soft_wrap=True)  # no line break inside a path
        raise


def _names(paths: list[str]) -> list[str]:
    """File names without suffixes; whole paths if those are the same."""
    stems = [pathlib.Path(path).stem for path in paths]
    return stems if len(set(stems)) == len(stems) else paths
