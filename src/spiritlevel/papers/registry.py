"""The experiments by name."""

from __future__ import annotations

import functools

from ..errors import SpiritlevelError, suggestion
from .experiment_files import claim_documents, read_experiment
from .judging.experiment import Experiment


def names() -> list[str]:
    """The names of all experiments, in the order of the papers."""
    return sorted(claim_documents())


@functools.cache
def find(name: str) -> Experiment:
    """The experiment of this name."""
    documents = claim_documents()
    if name not in documents:
        raise SpiritlevelError(
            f"The experiment {name!r} must be one of {', '.join(sorted(documents))}."
            f"{suggestion(name, documents)}"
        )
    return read_experiment(documents[name])


def of_study(study: str) -> list[Experiment]:
    """The experiments that are judged by the runs of a study, that of its own name first."""
    return [find(name) for name, each in claim_documents().items() if each.study == study]
