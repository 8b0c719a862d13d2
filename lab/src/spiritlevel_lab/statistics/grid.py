"""Runs that differ in one hyperparameter and agree in all others."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from spiritlevel.ground.errors import SpiritlevelError, brief

from .points import Array, numpy

ABSENT = "(absent)"  # a run without this hyperparameter, such as the momentum of Adam

SettingsOfRuns = Sequence[Mapping[str, Any]]


@dataclasses.dataclass(frozen=True)
class Grid:
    """The settings of many runs, as one whole number for each run and hyperparameter.

    Read once for all measures of a study: reading settings takes longer than comparing them.
    """

    num_runs: int
    values: Mapping[str, Sequence[Hashable]]  # that occur, by hyperparameter
    codes: Mapping[str, Array]  # the place of each run's value in that list
    _parts: dict[bytes, Grid] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, settings: SettingsOfRuns | Grid, num_runs: int) -> Grid:
        """Read settings, unless they were read; refused where there is not one mapping a run."""
        grid = settings if isinstance(settings, Grid) else cls.read(settings)
        if grid.num_runs != num_runs:
            raise SpiritlevelError(
                "The 'settings' argument must have one mapping a run, in the order of 'values'. "
                f"Got {grid.num_runs} for {num_runs} runs."
            )
        return grid

    @classmethod
    def read(cls, settings: SettingsOfRuns) -> Grid:
        """The grid of one mapping a run.

        >>> Grid.read([{"lr": 0.1, "width": 8}, {"lr": 0.2, "width": 8}]).axes()
        ['lr']
        """
        np = numpy()
        if not isinstance(settings, Sequence) or not all(isinstance(s, Mapping) for s in settings):
            raise SpiritlevelError(
                "The 'settings' argument must be a list with one mapping of hyperparameters a run. "
                f"Got {brief(settings)}."
            )
        values: dict[str, list[Hashable]] = {}
        codes: dict[str, Array] = {}
        for name in dict.fromkeys(name for run in settings for name in run):
            places: dict[Hashable, int] = {}
            of_runs = [places.setdefault(value_key(run, name), len(places)) for run in settings]
            values[name], codes[name] = list(places), np.array(of_runs, dtype=np.intp)
        return cls(len(settings), values, codes)

    def among(self, runs: Array) -> Grid:
        """The grid of these runs alone; the same object for the same runs."""
        if len(runs) == self.num_runs:
            return self
        return self._parts.setdefault(runs.tobytes(), self._of_runs(runs, list(self.codes)))

    def without(self, name: str, runs: Array) -> Grid:
        """The grid of these runs, as if there were no such hyperparameter."""
        return self._of_runs(runs, [each for each in self.codes if each != name])

    def _of_runs(self, runs: Array, names: Sequence[str]) -> Grid:
        codes = {name: self.codes[name][runs] for name in names}
        return Grid(len(runs), {name: self.values[name] for name in names}, codes)

    def axes(self, *, but: Iterable[str] = ()) -> list[str]:
        """Hyperparameters that take more than one value, in order of appearance."""
        return [
            name
            for name, codes in self.codes.items()
            if name not in but and len(codes) and (codes != codes[0]).any()
        ]

    def groups_along(self, axis: str, *, ignoring: Iterable[str] = ()) -> list[Array]:
        """Indices of runs that agree in everything but the axis (and what is ignored)."""
        np = numpy()
        left_out = {axis, *ignoring}
        together = np.zeros(self.num_runs, dtype=np.intp)
        for name in self.axes(but=left_out):
            pairs = together * len(self.values[name]) + self.codes[name]
            together = np.unique(pairs, return_inverse=True)[1].ravel()
        return sorted(_split(together, np.arange(self.num_runs)), key=lambda group: int(group[0]))

    def by_value(self, axis: str, group: Array) -> dict[Hashable, Array]:
        """The runs of a group by their value on the axis: numbers by size, then names."""
        parts = _split(self.codes[axis][group], group)
        runs = {self.value(part[0], axis): part for part in parts}
        return {value: runs[value] for value in ordered(runs)}

    def value(self, run: int, name: str) -> Hashable:
        """What the run has as this hyperparameter."""
        return self.values[name][self.codes[name][run]]


def _split(codes: Array, items: Array) -> list[Array]:
    """The items by their code, in the order in which they come."""
    np = numpy()
    order = np.argsort(codes, kind="stable")
    if not len(order):
        return []
    parts: list[Array] = np.split(items[order], np.flatnonzero(np.diff(codes[order])) + 1)
    return parts


def parts_of(
    settings: SettingsOfRuns, seed_key: str = "seed"
) -> tuple[list[str] | None, dict[str, list[Any]], list[Any]]:
    """The setting of each run whatever its seed, its value on each axis, and its seed.

    Settings are None where none is repeated, or there is only one.

    >>> parts_of([{"lr": 1, "seed": 0}, {"lr": 1, "seed": 1}, {"lr": 2, "seed": 0}])
    (['{"lr": 1}', '{"lr": 1}', '{"lr": 2}'], {'lr': [1, 1, 2]}, [0, 1, 0])
    """
    rest = [{key: run[key] for key in run if key != seed_key} for run in settings]
    names = [json.dumps(each, sort_keys=True, default=str) for each in rest]
    repeated = 1 < len(set(names)) < len(names)
    seeds = [run.get(seed_key) for run in settings]
    return names if repeated else None, columns_of(rest), seeds


def columns_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """By name, in order of appearance; None where a run lacks it."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


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
