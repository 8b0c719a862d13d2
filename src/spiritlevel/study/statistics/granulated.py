"""Granulated Kendall coefficient of Jiang et al. 2020 (Fantastic Generalization Measures, eq. 4–6).

A plain τ over a grid rewards a measure that follows one strong hyperparameter. Here τ is taken
within groups of runs that differ in a single hyperparameter; ψ_i is its average over the groups of
the i-th hyperparameter and Ψ the average of the ψ_i.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from ...errors import SpiritlevelError
from ._arrays import Array, finite_points, numpy, signs
from .neighbours import Settings, axes_of, check_settings, groups_along, value_key

Seeds = Literal["hold", "average", "axis"]


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
    values: Iterable[float | None],
    target: Iterable[float | None],
    settings: Settings,
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
    if seeds not in ("hold", "average", "axis"):
        raise SpiritlevelError(
            f"The 'seeds' argument must be 'hold', 'average' or 'axis'. Got {seeds!r}."
        )
    points = finite_points(values=values, target=target)
    check_settings(settings, points.n + points.excluded)
    x, y = points.columns
    finite: list[Mapping[str, Any]] = [settings[i] for i in points.kept]
    if seeds == "average":
        x, y, finite = _averaged(x, y, finite, seed_key)
    apart = () if seeds == "axis" else (seed_key,)
    axes = tuple(_along(axis, x, y, finite) for axis in axes_of(finite, but=apart))
    values_of_axes = [axis.value for axis in axes if axis.groups]
    value = sum(values_of_axes) / len(values_of_axes) if values_of_axes else math.nan
    reason = "" if values_of_axes else "no two runs differ in exactly one hyperparameter"
    return GranulatedKendall(value, axes, points.n, points.excluded, seeds, reason)


def _averaged(
    x: Array, y: Array, settings: list[Mapping[str, Any]], seed_key: str
) -> tuple[Array, Array, list[Mapping[str, Any]]]:
    np = numpy()
    cells = list(groups_along(seed_key, settings).values())
    x, y = (np.array([column[cell].mean() for cell in cells]) for column in (x, y))
    without = [{k: v for k, v in settings[cell[0]].items() if k != seed_key} for cell in cells]
    return x, y, list(without)


def _along(axis: str, x: Array, y: Array, settings: Settings) -> AxisKendall:
    taus, lone = [], 0
    for group in groups_along(axis, settings).values():
        keys = [value_key(settings[i], axis) for i in group]
        tau = _tau(x[group], y[group], [keys.index(key) for key in keys])
        if math.isnan(tau):
            lone += 1
        else:
            taus.append(tau)
    value = sum(taus) / len(taus) if taus else math.nan
    return AxisKendall(axis, value, len(taus), lone)


def _tau(x: Array, y: Array, places: list[int]) -> float:
    """Mean of sign·sign over pairs at different places; nan if there is none."""
    np = numpy()
    differ = np.not_equal.outer(places, places)
    agreement = signs(x[:, None], x) * signs(y[:, None], y)
    return float(agreement[differ].mean()) if differ.any() else math.nan
