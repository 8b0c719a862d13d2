"""`spiritlevel prune`: what deleting each neuron or channel does to the loss, and which can go."""

from __future__ import annotations

import pathlib
from typing import Annotated, Any

import typer

from ..analysis.pruning import Pruning, pruning
from ..analysis.pruning.measuring import SHARES
from ..analysis.pruning.records import deletion_text
from ..errors import SpiritlevelError
from ..files import write_atomically
from ..pages.figures import pruning as draw
from ..pages.figures import save
from ..study.checkpoints import save_checkpoint
from . import console, inputs, subject
from .tables import print_by_name

EXAMPLES = """\b
Examples:
  spiritlevel prune --model digits_cnn --checkpoint run7.safetensors --share 0.3
  spiritlevel prune --model my_nets:make --checkpoint run7.safetensors --data val.npz \\
      --layers 'layer*' --share 0.5 --plot units.png --save smaller.safetensors
"""


def prune(
    model: subject.Model,
    model_arg: subject.ModelArguments = None,
    checkpoint: subject.Checkpoint = None,
    data: subject.Data = "digits",
    split: subject.Split = "train",
    samples: subject.Samples = None,
    batch_size: subject.BatchSize = 256,
    loss: subject.LossName = "cross_entropy",
    share: Annotated[
        float | None,
        typer.Option(metavar="SHARE", help="How much of the weights to delete, such as 0.3."),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            metavar="RULE", help="joint (default), curvature, rise, magnitude, fisher or random."
        ),
    ] = None,
    save_to: Annotated[
        pathlib.Path | None,
        typer.Option("--save", metavar="PATH", help="Write the weights, zeros where deleted."),
    ] = None,
    plot: subject.Plot = None,
    layers: subject.Layers = None,
    head: subject.HeadName = None,
    memory: subject.Memory = None,
    device: subject.Device = "cpu",
    dtype: subject.Dtype = "float32",
    seed: subject.Seed = 0,
    json: subject.Json = None,
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
        "loss": loss,
        "layers": subject.one_or_many(layers),
        "head": head,
        "memory": None if memory is None else inputs.parse_memory(memory),
        "seed": seed,
    }
    loaded = subject.load(
        model=model,
        model_arg=model_arg,
        checkpoint=checkpoint,
        data=data,
        split=split,
        samples=samples,
        batch_size=batch_size,
        device=device,
        dtype=dtype,
        seed=seed,
    )
    loaded.introduce(talk)
    console.note(talk)
    with console.progress("units") as show:
        arguments["progress"] = subject.by_pass(show, "units")
        found = loaded.attempt(pruning, **arguments)
    console.details("setting", found.settings)
    _print(talk, found)
    if plot is not None:
        write_atomically(plot, save(draw(found), plot.suffix[1:]))
        console.note(talk, f"written: {plot}")
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
        half = 0.5 * second
        cells = [f"{float(value):.2g}" for value in (half.min(), half.median(), half.max())]
        mark = "exact" if found.exact[name] else "ggn"
        gone = [] if found.chosen is None else [str(len(found.chosen.units[name]))]
        rows[name] = [str(len(half)), *cells, mark, *gone]
    print_by_name(talk, "½ρ(j) of the units of", titles, rows)
    _print_curves(talk, found)
    if found.chosen is not None:
        console.tell(talk, f"chosen: {deletion_text(found.chosen)}")
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
