"""All pages made again from the recorded results: nothing on them is typed in by hand."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Mapping

from spiritlevel.ground.files import write_atomically
from spiritlevel_lab.papers.registry import find, names

from . import audited
from .forest import forest
from .population_lines import populations
from .recorded import load
from .render import render
from .results import ScaleResult
from .series import svg
from .summary import summary
from .what_holds import FIGURE, what_holds

EARLIER = "earlier_verdicts.json"  # beside the folder of results


def analysed(results: str | os.PathLike[str]) -> dict[str, list[ScaleResult]]:
    """By experiment: what was recorded at each scale, and what it says; empty if not run yet.

    That nearest to the paper comes first; one whose networks are not trained follows the others,
    since it says nothing about the claim.
    """
    return {
        name: sorted(
            (ScaleResult.of(record, find(name)) for record in load(results, name)),
            key=lambda scale: bool(scale.outcome.met),
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
    text = summary(run, waiting, audited.load_all(results), _earlier(results))
    top = {"experiments.md": text.encode()}
    if run:
        shown = populations([scales[0] for scales in run])
        top["what-holds.md"] = what_holds(run, shown).encode()
        if shown:
            written[FIGURE] = forest(shown)
    return top | written


def _earlier(results: str | os.PathLike[str]) -> dict[str, list[str]]:
    """The verdicts before the present rules; none beside results that were never judged then."""
    path = pathlib.Path(results).parent / EARLIER
    found: dict[str, list[str]] = json.loads(path.read_bytes()) if path.is_file() else {}
    return found


def write_pages(results: str | os.PathLike[str], docs: str | os.PathLike[str]) -> list[str]:
    """Write them below the folder `docs`; the paths."""
    paths = []
    for place, content in pages(results).items():
        path = pathlib.Path(docs) / place
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
        paths.append(str(path))
    return paths
