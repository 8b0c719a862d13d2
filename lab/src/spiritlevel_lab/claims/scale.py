"""How near the runs are to the paper's: the same data and networks, and enough of the images."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

from ..population import control
from ..population.settings.definition import Study
from .findings import VERDICTS, Agreement

PAPER = "paper"  # the preset that follows the paper
ENOUGH = 0.5  # of the paper's images
SIZES = ("width", "hidden", "blocks", "growth", "depth")
SMALLER = " at a smaller scale"
WORDS = (  # every verdict, the most the papers would have hoped for first
    *(VERDICTS[each] + scale for each in ("yes", "partly", "no") for scale in ("", SMALLER)),
    VERDICTS["undecided"],
    VERDICTS["untrained"],
)


def verdict_in_words(agrees: Agreement, study: Study) -> str:
    """The verdict; what holds or fails on smaller data or networks does so at that scale."""
    decided = agrees in ("yes", "partly", "no")
    return VERDICTS[agrees] + (SMALLER if decided and not at_the_papers_scale(study) else "")


def at_the_papers_scale(study: Study) -> bool:
    """Whether data set and networks are those of the preset "paper", with half of its images."""
    library = library_study(study.name)
    if PAPER not in library.presets:
        return False
    theirs = library_study(study.name, PAPER)
    if networks_of(study) != networks_of(theirs):
        return False
    ours, wanted = images_of(study), images_of(theirs)
    return set(ours) == set(wanted) and all(_enough(ours[k], wanted[k]) for k in wanted)


def images_of(study: Study) -> dict[str, int | None]:
    """How many images of each data set; None for all of them."""
    found: dict[str, int | None] = {}
    for run in study.runs():
        data = run.data.to_dict()
        found[str(data["name"])] = data.get("samples")
    return found


def networks_of(study: Study) -> list[str]:
    """Names and sizes of the networks, in order of appearance."""
    models = (run.model.to_dict() for run in study.runs())
    return list(dict.fromkeys(_network(model) for model in models))


def _network(model: Mapping[str, Any]) -> str:
    name = str(model["name"]).rpartition(":")[2]
    sizes = [f"{key} {json.dumps(model[key])}" for key in SIZES if key in model]
    return f"{name} ({', '.join(sizes)})" if sizes else name


def _enough(ours: int | None, theirs: int | None) -> bool:
    """Half of them; None stands for all.

    >>> _enough(None, 50000), _enough(25000, 50000), _enough(20000, None)
    (True, True, False)
    """
    if ours is None:
        return True
    return theirs is not None and ours >= ENOUGH * theirs


@functools.cache
def library_study(name: str, preset: str = "") -> Study:
    """A study by its name, with one of its presets; checking all of its runs takes a while."""
    if preset:
        return library_study(name).with_preset(preset)
    return control.find(name)
