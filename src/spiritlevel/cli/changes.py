"""What `quantize` and `prune` share: changes of weights are measured, shown, and written."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rich.console import Console

from ..analysis.changes.record import AbstractChanges
from ..study.checkpoints import save_checkpoint
from . import console, options, subject
from .tables import print_by_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclasses.dataclass(frozen=True)
class Changes:
    """What is special about a family of changes."""

    verb: Callable[..., AbstractChanges[Any]]
    draw: Callable[[Any], Figure]
    doing: str  # while it runs
    left: str  # before the name of a weight that stays as it is
    tell_more: Callable[[Console, Any], None]  # below the table


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerOptions:
    """Which layers, and a figure of them."""

    plot: options.Plot = None
    layers: options.Layers = None
    head: options.HeadName = None


@dataclasses.dataclass(frozen=True)
class Asked:
    """What both commands are told."""

    network: options.NetworkOptions
    on: options.DataOptions
    of: LayerOptions
    at: options.MachineOptions
    save_to: pathlib.Path | None
    json: str | None


def run(changes: Changes, asked: Asked, **arguments: Any) -> None:
    """Measure, with further `arguments` of the verb; then show and write what was asked for."""
    talk, at = console.talk(asked.json), asked.at
    loaded = subject.load(asked.network, asked.on, at)
    loaded.introduce(talk)
    console.note(talk)
    with console.progress(changes.doing) as show:
        found = loaded.attempt(
            changes.verb,
            loss=asked.on.loss,
            layers=subject.one_or_many(asked.of.layers),
            head=asked.of.head,
            memory=at.num_bytes,
            seed=at.seed,
            progress=subject.by_pass(show, changes.doing),
            **arguments,
        )
    console.details("setting", found.settings)
    _print(talk, changes, found)
    if asked.of.plot is not None:
        subject.write_figure(talk, asked.of.plot, changes.draw(found))
    if asked.save_to is not None and found.chosen is not None:
        save_checkpoint(found.apply(loaded.network, found.chosen), asked.save_to)
        console.note(talk, f"written: {asked.save_to}")
    subject.write_json(talk, asked.json, found.to_json())


def _print(talk: Console, changes: Changes, found: AbstractChanges[Any]) -> None:
    heading, titles, rows, note = found.table(with_chosen=True)
    print_by_name(talk, heading, titles, rows)
    changes.tell_more(talk, found)
    if found.chosen is not None:
        console.tell(talk, f"chosen: {found.chosen.text()}")
    if note:
        console.note(talk, note)
    for name, why in found.left_out.items():
        console.note(talk, f"{changes.left}: {name}: {why}")
    count = int(found.settings["num_samples"])
    console.note(talk, f"counted: {found.cost.passes(count)} per sample over {count} samples")
