"""What `quantize` and `prune` share: changes of weights are measured, shown, and written."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..inputs.checkpoints import save_checkpoint
from ..verbs.changes import AbstractChanges
from . import console, inputs, options, outputs, pace, subject, tables

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def run(
    verb: Callable[..., AbstractChanges[Any]],
    draw: Callable[[Any], Figure],
    doing: str,
    network: options.NetworkOptions,
    on: options.DataOptions,
    of: options.LayerOptions,
    at: options.MachineOptions,
    *,
    save_to: pathlib.Path | None,
    json: str | None,
    **own: Any,
) -> None:
    """Call `verb` with its `own` arguments too; show and write what it found.

    `doing` is what is told while it runs.
    """
    talk = console.talk(json)
    loaded = subject.load(network, on, at)
    loaded.introduce(talk)
    console.note(talk)
    with console.progress(doing) as show:
        found = loaded.attempt(
            verb,
            **own,
            loss=on.loss,
            layers=inputs.one_or_many(of.layers),
            head=of.head,
            memory=at.num_bytes,
            seed=at.seed,
            progress=pace.by_pass(show, doing),
        )
    console.details("setting", found.settings)
    tables.print_parts(talk, found.describe())
    if of.plot is not None:
        outputs.write_figure(talk, of.plot, draw(found))
    if save_to is not None and found.chosen is not None:
        save_checkpoint(found.apply(loaded.network, found.chosen), save_to)
        console.note(talk, f"written: {save_to}")
    outputs.write_json(talk, json, found.to_json())
