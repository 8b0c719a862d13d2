"""The recorded results of this repository, in the order in which its pages show them."""

from __future__ import annotations

import os
import pathlib

from spiritlevel_lab.claims.rows import missing_columns
from spiritlevel_lab.papers.records import Record, stem
from spiritlevel_lab.papers.registry import find

# Presets, by how near they are to the papers.
SCALES = (
    "paper",
    "h200-accuracy",
    "h200-settings",
    "h200-full",
    "h200-imagenet",
    "h200-cifar100",
    "h200-trained",
    "h200-narrow",
    "h200-augmented",
    "h200-after-norm",
    "h200-low-rates",
    "paper-rates",
    "h200",
    "one-core",
    "small-trained",
    "",
    "quick",
)


def load(folder: str | os.PathLike[str], name: str) -> list[Record]:
    """The records of an experiment, that nearest to the paper first; none if it was not run yet.

    One that looks at the rows of another experiment leaves out those without its own columns.
    """
    experiment = find(name)
    paths = [pathlib.Path(folder) / f"{stem(experiment.study, preset)}.json" for preset in SCALES]
    found = [Record.from_json(p.read_text(encoding="utf-8")) for p in paths if p.is_file()]
    own = experiment.study == experiment.name
    return [each for each in found if own or not missing_columns(experiment, each.rows)]
