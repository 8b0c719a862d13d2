"""Runs that differ in one hyperparameter and agree in all others."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from ...errors import SpiritlevelError

ABSENT = "(absent)"  # a run without this hyperparameter, such as the momentum of Adam

Settings = Sequence[Mapping[str, Any]]


def check_settings(settings: Settings, num_runs: int) -> None:
    """Raise unless there is one mapping a run."""
    if not isinstance(settings, Sequence) or not all(isinstance(s, Mapping) for s in settings):
        raise SpiritlevelError(
            "The 'settings' argument must be a list with one mapping of hyperparameters a run. "
            f"Got {settings!r:.80}."
        )
    if len(settings) != num_runs:
        raise SpiritlevelError(
            "The 'settings' argument must have one mapping a run, in the order of 'values'. Got "
            f"{len(settings)} for {num_runs} runs."
        )


def axes_of(settings: Settings, *, but: Iterable[str] = ()) -> list[str]:
    """Hyperparameters that take more than one value, in order of appearance.

    >>> axes_of([{"lr": 0.1, "width": 8, "seed": 0}, {"lr": 0.2, "width": 8, "seed": 1}])
    ['lr', 'seed']
    """
    names = dict.fromkeys(name for run in settings for name in run)
    return [
        name
        for name in names
        if name not in but and len({value_key(run, name) for run in settings}) > 1
    ]


def groups_along(
    axis: str, settings: Settings, *, ignoring: Iterable[str] = ()
) -> dict[Hashable, list[int]]:
    """Indices of runs that agree in everything but the axis (and what is ignored)."""
    left_out = {axis, *ignoring}
    names = [name for name in axes_of(settings) if name not in left_out]
    groups: dict[Hashable, list[int]] = {}
    for i, run in enumerate(settings):
        groups.setdefault(tuple(value_key(run, name) for name in names), []).append(i)
    return groups


def value_key(run: Mapping[str, Any], name: str) -> Hashable:
    """The run's value in a form that can be compared: lists and mappings as JSON."""
    value = run.get(name, ABSENT)
    try:
        hash(value)
    except TypeError:
        return json.dumps(value, sort_keys=True, default=repr)
    return value


def ordered(values: Iterable[Hashable]) -> list[Hashable]:
    """Numbers by size, then everything else by its text: independent of the order of the runs."""
    numbers = [v for v in values if isinstance(v, int | float)]
    texts = [v for v in values if not isinstance(v, int | float)]
    return [*sorted(numbers), *sorted(texts, key=str)]
