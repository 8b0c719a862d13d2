"""All pages made again from the recorded results: nothing on them is typed in by hand."""

from __future__ import annotations

import os
import pathlib

from ...files import write_atomically
from ...pages.figures.series import svg
from ..experiment import Experiment
from ..registry import find, names
from . import audited, records
from .render import ScaleResult, render
from .summary import summary
from .what_holds import what_holds


def pages(results: str | os.PathLike[str]) -> dict[str, bytes]:
    """By path below docs/: the two summaries, and page and figures of every experiment."""
    results_by_experiment: list[list[ScaleResult]] = []
    waiting: list[Experiment] = []
    written: dict[str, bytes] = {}
    for name in names():
        experiment = find(name)
        scales = [ScaleResult.of(record, experiment) for record in records.load(results, name)]
        if not scales:
            waiting.append(experiment)
            continue
        results_by_experiment.append(scales)
        written[f"experiments/{name}.md"] = render(scales).encode()
        for scale in scales:
            if scale.outcome.figure is not None:
                written[f"experiments/{scale.stem}.svg"] = svg(scale.outcome.figure)
    text = summary(results_by_experiment, waiting, audited.load_all(results))
    top = {"experiments.md": text.encode()}
    if results_by_experiment:
        top["what-holds.md"] = what_holds(results_by_experiment).encode()
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
