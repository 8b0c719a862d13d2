"""The experiments that are there, by name."""

from __future__ import annotations

import importlib
import pkgutil

from .._core import SpiritlevelError, suggestion
from .experiment import Experiment

PREFIX = "paper_"  # of the files that hold an experiment


def names() -> list[str]:
    """All names, in the order of the papers."""
    return sorted(_all())


def find(name: str) -> Experiment:
    """The experiment of this name."""
    known = _all()
    if name not in known:
        raise SpiritlevelError(
            f"The experiment {name!r} must be one of {', '.join(sorted(known))}."
            f"{suggestion(name, known)}"
        )
    return known[name]


def _all() -> dict[str, Experiment]:
    package = importlib.import_module(__package__)
    files = [m.name for m in pkgutil.iter_modules(package.__path__) if m.name.startswith(PREFIX)]
    found = [importlib.import_module(f"{__package__}.{file}").EXPERIMENT for file in files]
    return {experiment.name: experiment for experiment in found}
