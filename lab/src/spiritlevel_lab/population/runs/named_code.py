"""The code that a study's settings name: networks, tasks and penalties as 'module:name'."""

from __future__ import annotations

import pathlib
from collections.abc import Iterable

from torch import nn

from spiritlevel.ground import user_code
from spiritlevel.inputs.models.registry import is_registered
from spiritlevel.training.penalties.penalty import Penalty

from ..settings.run import RunSettings

BASES: dict[str, type | None] = {"model": nn.Module, "task": None, "penalty": Penalty}


def check_code(
    runs: Iterable[RunSettings], *, allow_code: bool, received: pathlib.Path | None = None
) -> None:
    """Refuse runs that name code of unknown origin, before any of it is imported.

    Args:
        runs: whose settings may come from a file of somebody else.
        allow_code: the user said that they trust the study.
        received: the folder of a store that may have been received with code in it.
    """
    if allow_code:
        return
    for what, name in dict.fromkeys(pair for run in runs for pair in _named(run)):
        user_code.check_origin(name, what=what, base=BASES[what], received=received)


def _named(run: RunSettings) -> list[tuple[str, str]]:
    """Roles and names that have to be imported from a user's module."""
    names = []
    if not is_registered(run.model.name):
        names.append(("model", run.model.name))
    if run.task is not None:
        names.append(("task", run.task.name))
    if run.training.penalty is not None:
        names.append(("penalty", run.training.penalty.name))
    return [(what, name) for what, name in names if ":" in name]
