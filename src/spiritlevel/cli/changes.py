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


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerOptions:
    """Which layers, and a figure of them."""

    plot: options.Plot = None
    layers: options.Layers = None
    head: options.HeadName = None


@dataclasses.dataclass(frozen=True)
class ChangesCommand:
    """A command about a family of changes, and what it is told as the other one is."""

    network: options.NetworkOptions
    on: options.DataOptions
    of: LayerOptions
    at: options.MachineOptions
    save_to: pathlib.Path | None
    json: str | None
    doing: str  # while it runs
    left: str  # before the name of a weight that stays as it is

    def run(
        self,
        verb: Callable[..., AbstractChanges[Any]],
        draw: Callable[[Any], Figure],
        tell_more: Callable[[Console, Any], None],
        **own: Any,
    ) -> None:
        """Call `verb` with its `own` arguments too; show and write what it found."""
        talk = console.talk(self.json)
        loaded = subject.load(self.network, self.on, self.at)
        loaded.introduce(talk)
        console.note(talk)
        with console.progress(self.doing) as show:
            found = loaded.attempt(
                verb,
                **own,
                loss=self.on.loss,
                layers=subject.one_or_many(self.of.layers),
                head=self.of.head,
                memory=self.at.num_bytes,
                seed=self.at.seed,
                progress=subject.by_pass(show, self.doing),
            )
        console.details("setting", found.settings)
        self._print(talk, found, tell_more)
        if self.of.plot is not None:
            subject.write_figure(talk, self.of.plot, draw(found))
        if self.save_to is not None and found.chosen is not None:
            save_checkpoint(found.apply(loaded.network, found.chosen), self.save_to)
            console.note(talk, f"written: {self.save_to}")
        subject.write_json(talk, self.json, found.to_json())

    def _print(
        self, talk: Console, found: AbstractChanges[Any], tell_more: Callable[[Console, Any], None]
    ) -> None:
        heading, titles, rows, note = found.table(with_chosen=True)
        print_by_name(talk, heading, titles, rows)
        tell_more(talk, found)
        if found.chosen is not None:
            console.tell(talk, f"chosen: {found.chosen.text()}")
        if note:
            console.note(talk, note)
        for name, why in found.left_out.items():
            console.note(talk, f"{self.left}: {name}: {why}")
        count = int(found.settings["num_samples"])
        console.note(talk, f"counted: {found.cost.passes(count)} per sample over {count} samples")
