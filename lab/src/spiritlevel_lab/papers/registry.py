"""The experiments by name."""

from __future__ import annotations

import importlib
import pkgutil
import re

from spiritlevel.ground.errors import SpiritlevelError, suggestion

from .experiment import Experiment

PREFIX = "paper_"  # of the folders, one per paper
EXPERIMENT_FILE = re.compile(r"fig_\d+|table(_\d+)?|a\d+|time")


def names() -> list[str]:
    """The names of all experiments, in the order of the papers."""
    return sorted(_all())


def find(name: str) -> Experiment:
    """The experiment of this name."""
    experiments = _all()
    if name not in experiments:
        raise SpiritlevelError(
            f"The experiment {name!r} must be one of {', '.join(sorted(experiments))}."
            f"{suggestion(name, experiments)}"
        )
    return experiments[name]


def _all() -> dict[str, Experiment]:
    return {experiment.name: experiment for experiment in map(_experiment, _modules())}


def _modules() -> list[str]:
    """The files of the papers' folders that hold an experiment: `fig_3`, `table_5`, `a6`."""
    package = importlib.import_module(__package__)
    papers = [m.name for m in pkgutil.iter_modules(package.__path__) if m.name.startswith(PREFIX)]
    return [
        f"{__package__}.{paper}.{module.name}"
        for paper in papers
        for module in pkgutil.iter_modules(
            importlib.import_module(f"{__package__}.{paper}").__path__
        )
        if EXPERIMENT_FILE.fullmatch(module.name)
    ]


def _experiment(module: str) -> Experiment:
    return importlib.import_module(module).EXPERIMENT
