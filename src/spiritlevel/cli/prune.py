"""`spiritlevel prune`: what deleting each neuron or channel does to the loss, and which can go."""

from __future__ import annotations

import pathlib
from typing import Annotated, Any

import typer

from ..ground.errors import SpiritlevelError
from ..inputs.checkpoints import save_checkpoint
from ..pages.figures import pruning as draw
from ..verbs.pruning import Pruning, pruning
from ..verbs.pruning.measuring import MIN_PROBES, SHARES
from ..verbs.pruning.records import PROBED, deletion_text
from . import console, options, subject
from .common import examples
from .tables import print_by_name


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
    plot: options.Plot = None,
    layers: options.Layers = None,
    head: options.HeadName = None,
    at: options.MachineOptions,
    json: options.Json = None,
) -> None:
    """Predict what deleting each input neuron or channel does to the loss, and choose a share."""
    talk = console.talk(json)
    if save_to is not None and share is None:
        raise SpiritlevelError(
            "The --save option needs a --share: how much should be deleted? Got none. "
            "For example --share 0.3."
        )
    arguments: dict[str, Any] = {
        "share": share,
        "by": by,
        "fisher": by == "fisher",
        "num_probes": num_probes,
        "loss": on.loss,
        "layers": subject.one_or_many(layers),
        "head": head,
        "memory": at.num_bytes,
        "seed": at.seed,
    }
    loaded = subject.load(network, on, at)
    loaded.introduce(talk)
    console.note(talk)
    with console.progress("units") as show:
        arguments["progress"] = subject.by_pass(show, "units")
        found = loaded.attempt(pruning, **arguments)
    console.details("setting", found.settings)
    _print(talk, found)
    if plot is not None:
        subject.write_figure(talk, plot, draw(found))
    if save_to is not None and found.chosen is not None:
        save_checkpoint(found.apply(loaded.network, found.chosen), save_to)
        console.note(talk, f"written: {save_to}")
    subject.write_json(talk, json, found.to_json())


def _print(talk: Any, found: Pruning) -> None:
    titles = ["units", "smallest", "median", "largest", ""]
    if found.chosen is not None:
        titles.append("deleted")
    rows = {}
    for name, second in found.second.items():
        gone = [] if found.chosen is None else [str(len(found.chosen.units[name]))]
        rows[name] = [str(len(second)), *found.cells(name), *gone]
    print_by_name(talk, "½ρ(j) of units of", titles, rows)
    _print_curves(talk, found)
    if found.chosen is not None:
        console.tell(talk, f"chosen: {deletion_text(found.chosen)}")
    if probes := found.settings["num_probes"]:
        console.note(talk, PROBED.format(probes))
    for name, why in found.left_out.items():
        console.note(talk, f"left out: {name}: {why}")
    count = int(found.settings["num_samples"])
    console.note(talk, f"counted: {found.cost.passes(count)} per sample over {count} samples")


def _print_curves(talk: Any, found: Pruning) -> None:
    """What the loss does as more and more is deleted, by rule."""
    rows = {
        f"by {rule}": ["" if d.measured_rise is None else f"{d.measured_rise:.2g}" for d in curve]
        for rule, curve in found.curves.items()
    }
    titles = [f"{share:.0%}" for share in SHARES]
    print_by_name(talk, "measured rise of the loss, deleted", titles, rows)
