"""Granulated Kendall coefficient of Jiang et al. 2020 (Fantastic Generalization Measures, eq. 4–6).

A plain τ over a grid rewards a measure that follows one strong hyperparameter. Here τ is taken
within groups of runs that differ in a single hyperparameter; ψ_i is its average over the groups of
the i-th hyperparameter and Ψ the average of the ψ_i.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal

from spiritlevel.ground.need import need, one_of

from .grid import Grid, SettingsOfRuns
from .points import Array, Numbers, agreement, finite_points, numpy, signs

Seeds = Literal["hold", "average", "axis"]
PAIRS = 1 << 20  # that are compared at once
LARGE = 256  # runs of a group whose pairs are not compared one by one


@dataclasses.dataclass(frozen=True)
class AxisKendall:
    """ψ of one hyperparameter: the average of τ over `groups`; `lone` groups had no pair."""

    axis: str
    value: float
    groups: int
    lone: int


@dataclasses.dataclass(frozen=True)
class GranulatedKendall:
    """Ψ, its parts, and how many runs they rest on."""

    value: float
    axes: tuple[AxisKendall, ...]
    n: int
    excluded: int
    seeds: str
    reason: str = ""


def granulated_kendall(
    values: Numbers,
    target: Numbers,
    settings: SettingsOfRuns | Grid,
    *,
    seeds: Seeds = "hold",
    seed_key: str = "seed",
) -> GranulatedKendall:
    """Ψ and ψ of every hyperparameter that varies.

    τ within a group is the paper's: the sum of sign(Δmeasure)·sign(Δtarget) over pairs, divided by
    the number of pairs, so a tie counts 0. Two runs with the same value of the hyperparameter are
    no pair of its axis. A hyperparameter without any pair is reported with nan and left out of Ψ.

    Args:
        values: of the measure, one a run; None or a non-finite number leaves the run out.
        target: such as the generalization gap.
        settings: hyperparameters of every run.
        seeds: "hold" compares runs of the same seed, so no number is averaged and any increasing
            transform of the measure gives the same Ψ; "average" first averages measure and target
            over the seeds; "axis" treats the seed as one more hyperparameter.
        seed_key: the name of the seed in `settings`.

    >>> grid = [{"lr": lr, "width": w} for lr in (1, 2) for w in (8, 16)]
    >>> granulated_kendall([1, 2, 3, 4], [1, 2, 0, 0.5], grid).value  # ψ: lr −1, width +1
    0.0
    """
    need("seeds", seeds, one_of(("hold", "average", "axis")), "'hold', 'average' or 'axis'")
    points = finite_points(values=values, target=target)
    grid = Grid.of(settings, points.n + points.excluded).among(points.kept)
    x, y = points.columns
    if seeds == "average":
        x, y, grid = _averaged(x, y, grid, seed_key)
    apart = () if seeds == "axis" else (seed_key,)
    axes = tuple(_along(axis, x, y, grid) for axis in grid.axes(but=apart))
    values_of_axes = [axis.value for axis in axes if axis.groups]
    value = sum(values_of_axes) / len(values_of_axes) if values_of_axes else math.nan
    reason = "" if values_of_axes else "no two runs differ in exactly one hyperparameter"
    return GranulatedKendall(value, axes, points.n, points.excluded, seeds, reason)


def _averaged(x: Array, y: Array, grid: Grid, seed_key: str) -> tuple[Array, Array, Grid]:
    np = numpy()
    cells = grid.groups_along(seed_key)
    x, y = (np.array([column[cell].mean() for cell in cells]) for column in (x, y))
    return x, y, grid.without(seed_key, np.array([cell[0] for cell in cells], dtype=np.intp))


def _along(axis: str, x: Array, y: Array, grid: Grid) -> AxisKendall:
    groups = grid.groups_along(axis)
    taus = [tau for tau in _taus(x, y, grid.codes[axis], groups) if not math.isnan(tau)]
    value = sum(taus) / len(taus) if taus else math.nan
    return AxisKendall(axis, value, len(taus), len(groups) - len(taus))


def _taus(x: Array, y: Array, places: Array, groups: Sequence[Array]) -> list[float]:
    """τ of each group; groups of one size are compared together."""
    np = numpy()
    taus = np.full(len(groups), np.nan)
    sizes = np.array([len(group) for group in groups])
    for size in np.unique(sizes):
        alike = np.flatnonzero(sizes == size)
        if size > LARGE:
            taus[alike] = [_tau_of_many(x, y, places, groups[i]) for i in alike]
            continue
        for part in np.array_split(alike, math.ceil(len(alike) * size**2 / PAIRS)):
            runs = np.stack([groups[i] for i in part])
            differ = places[runs][:, :, None] != places[runs][:, None]
            agreeing = _signs(x[runs]) * _signs(y[runs]) * differ
            pairs = differ.sum(axis=(1, 2))
            some = pairs > 0
            taus[part[some]] = agreeing.sum(axis=(1, 2))[some] / pairs[some]
    return [float(tau) for tau in taus]


def _signs(values: Array) -> Array:
    return signs(values[:, :, None], values[:, None])


def _tau_of_many(x: Array, y: Array, places: Array, group: Array) -> float:
    """All pairs, less those of runs at the same place."""
    np = numpy()
    total, pairs = agreement(x[group], y[group]), float(len(group) ** 2)
    numbers, counts = np.unique(places[group], return_counts=True)
    pairs -= float((counts**2).sum())
    for number in numbers[counts > 1]:
        same = group[places[group] == number]
        total -= agreement(x[same], y[same])
    return total / pairs if pairs else math.nan
