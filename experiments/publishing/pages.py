"""All pages made again from the recorded results: nothing on them is typed in by hand."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping

from spiritlevel.files import write_atomically
from spiritlevel.pages.figures.series import svg
from spiritlevel.papers.registry import find, names

from . import audited
from .recorded import load
from .render import render
from .results import ScaleResult
from .summary import summary
from .what_holds import what_holds


def analysed(results: str | os.PathLike[str]) -> dict[str, list[ScaleResult]]:
    """By experiment: what was recorded at each scale, and what it says; empty if not run yet.

    That nearest to the paper comes first; one whose networks are not trained follows the others,
    since it says nothing about the claim.
    """
    return {
        name: sorted(
            (ScaleResult.of(record, find(name)) for record in load(results, name)),
            key=lambda scale: scale.outcome.agrees == "untrained",
        )
        for name in names()
    }


def pages(
    results: str | os.PathLike[str], found: Mapping[str, list[ScaleResult]] | None = None
) -> dict[str, bytes]:
    """By path below docs/: the two summaries, and page and figures of every experiment.

    `found` is what `analysed` returns, where that is there already.
    """
    found = analysed(results) if found is None else found
    written: dict[str, bytes] = {}
    for name, scales in found.items():
        if scales:
            written[f"experiments/{name}.md"] = render(scales).encode()
        for scale in scales:
            if scale.outcome.figure is not None:
                written[f"experiments/{scale.stem}.svg"] = svg(scale.outcome.figure)
    waiting = [find(name) for name, scales in found.items() if not scales]
    run = [scales for scales in found.values() if scales]
    text = summary(run, waiting, audited.load_all(results))
    top = {"experiments.md": text.encode()}
    if run:
        top["what-holds.md"] = what_holds(run).encode()
    return top | written


def write_pages(results: str | os.PathLike[str], docs: str | os.PathLike[str]) -> list[str]:
    """Write them below the folder `docs`; the paths."""
    paths = []
    for place, content in pages(results).items():
        path = pathlib.Path(docs) / place
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
        paths.append(str(path))
    return paths
