"""`spiritlevel spectrum`: extreme eigenvalues of a network's Hessian, and their density."""

from __future__ import annotations

import pathlib
from typing import Annotated

import typer

from . import console, options, outputs, pace
from .common import examples


@examples("""\b
Examples:
  spiritlevel spectrum --model mlp --samples 500
  spiritlevel spectrum --model my_nets:make --checkpoint run7.safetensors \\
      --data val.npz --num 5 --plot spectrum.png --html spectrum.html
""")
def spectrum(
    *,
    network: options.NetworkOptions,
    on: options.DataOptions,
    matrix: Annotated[
        str, typer.Option(help="hessian or ggn.", callback=options.among(*options.MATRICES))
    ] = "hessian",
    num: Annotated[int, typer.Option(min=1, help="Eigenvalues at each end of the spectrum.")] = 3,
    rtol: Annotated[
        float,
        typer.Option(
            metavar="SHARE",
            help="Error at which an eigenvalue counts as found.",
            callback=options.SHARE,
        ),
    ] = 0.01,
    max_passes: Annotated[
        int,
        typer.Option(
            min=1, help="Most Hessian products for the eigenvalues; each is one pass over the data."
        ),
    ] = 200,
    plot: Annotated[
        pathlib.Path | None,
        typer.Option(
            help="Draw the spectral density: .png, .svg or .pdf.", callback=options.drawable
        ),
    ] = None,
    vectors: Annotated[int, typer.Option(min=1, help="Random vectors for the density.")] = 4,
    steps: Annotated[
        int, typer.Option(min=2, help="Hessian products per vector for the density.")
    ] = 40,
    layers: options.Layers = None,
    head: options.HeadName = None,
    at: options.MachineOptions,
    json: options.Json = None,
    html: options.Html = None,
) -> None:
    """Compute the extreme eigenvalues of the Hessian, and draw the spectral density."""
    from ..verbs import spectra
    from . import subject, tables

    talk = console.talk(json)
    arguments = options.arguments(on, at, layers, head) | {"matrix": matrix}
    loaded = subject.load(network, on, at)
    loaded.introduce(talk)
    console.note(talk)
    with pace.passes("eigenvalues") as arguments["progress"]:
        pairs = loaded.attempt(
            spectra.eigenvalues,
            num=num,
            which="both",
            rtol=rtol,
            max_passes=max_passes,
            **arguments,
        )
    loaded.describe(pairs.settings, on.loss)
    console.details("setting", pairs.settings)
    tables.print_parts(talk, pairs.describe())
    density = None
    if plot is not None or html is not None:
        with pace.passes("density") as arguments["progress"]:
            density = loaded.attempt(spectra.density, num_vectors=vectors, steps=steps, **arguments)
        talk.print()
        tables.print_parts(talk, density.describe())
    if plot is not None and density is not None:
        from ..pages import figures

        figure = figures.new_figure(6.0, 3.4)
        figures.density(density, pairs.values, ax=figure.subplots())
        outputs.write_figure(talk, plot, figure)
    result = spectra.Spectrum(eigenvalues=pairs, density=density)
    outputs.write_json(talk, json, result.to_json())
    outputs.write_html(talk, html, result)
