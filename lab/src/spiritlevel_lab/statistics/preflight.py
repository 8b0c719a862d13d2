"""What a study could see, before it runs: by simulation of its own settings and seeds.

In the simulated populations measure and target are normal and have the same true correlation in
every part: in each axis, in each setting beyond its axes, and in each run. Half of the variance
lies between settings, one share for each axis and one for the setting, and half between its runs.
They are judged by the rules of `judge` and `two_way`, with two short cuts that make thousands of
them quick: ranks and what axes explain are not computed again for each group that is left out, and
the permutations are taken as Student's t, which they come close to.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .clusters import ALMOST, MIN_CLUSTERS, in_blocks, numbered, student_quantile
from .few_values import Design
from .grid import parts_of
from .levels import MIN_RUNS
from .points import Array, Indices, numpy, scipy_stats

STEPS = 20  # correlations of 0.05, 0.10, … are tried
MOST_NUMBERS = 200_000  # of the simulated populations of one correlation
FEWEST, MOST = 100, 400  # populations


@dataclasses.dataclass(frozen=True)
class Preflight:
    """The smallest true correlations that a design shows with the wanted power; None: none."""

    runs: int
    settings: int
    seeds: int  # different ones
    power: float
    fixed: tuple[str, ...]  # axes with too few values to be left out, held fixed
    reason: str  # why there is no honest interval over all runs, or ""
    sees_over: float | None  # over all runs
    sees_within: float | None  # within settings

    @property
    def is_honest(self) -> bool:
        """Whether the design has an honest interval over all runs."""
        return not self.reason

    @property
    def sentence(self) -> str:
        """What to expect of it, in words."""
        over = f"over all runs: {_seen(self.sees_over)}"
        if self.reason:
            over = f"over all runs: no honest interval, since {self.reason}"
        return (
            f"What {_number(self.settings, 'setting')} with {_number(self.seeds, 'seed')} could "
            f"show with power {self.power:g}: {over}; within settings: {_seen(self.sees_within)}."
        )


def preflight(
    settings: Sequence[Mapping[str, Any]],
    *,
    power: float = 0.8,
    seed_key: str = "seed",
    seed: int = 0,
) -> Preflight:
    """Which correlations a study could see, from the settings of its runs.

    Args:
        settings: one mapping a run, with its seed.
        power: the share of populations in which the correlation is to be clear.
        seed_key: the name of the seed in the settings.
        seed: of the simulation.

    >>> print(preflight([{"lr": 1, "seed": seed} for seed in range(3)]).sees_over)
    None
    """
    clusters, axes, seeds = parts_of(settings, seed_key)
    design = Design.of(clusters, axes, seeds)
    places, num = numbered([tuple(str(axes[name][i]) for name in axes) for i in range(len(seeds))])
    population = _Population.of(axes, places, num, seed)
    found = Preflight(
        runs=len(seeds),
        settings=num,
        seeds=len(set(map(str, seeds))),
        power=power,
        fixed=design.few,
        reason=design.reason,
        sees_over=None,
        sees_within=_smallest(power, population, _within(places, seeds)),
    )
    if design.reason:
        return found
    return dataclasses.replace(found, sees_over=_smallest(power, population, _over_all(design)))


Clear = Callable[[Array, Array], Any]  # which of many populations (rows) are clear


@dataclasses.dataclass(frozen=True)
class _Population:
    """Two unrelated columns of many populations; a true correlation mixes the one into the other.

    As every part has the same correlation, the parts can be added before they are mixed.
    """

    one: Array
    other: Array

    @classmethod
    def of(
        cls, axes: Mapping[str, Sequence[object]], places: Indices, num: int, seed: int
    ) -> _Population:
        np = numpy()
        generator = np.random.default_rng(seed)
        rows = int(np.clip(MOST_NUMBERS // len(places), FEWEST, MOST))
        parts = [numbered(list(map(str, column))) for column in axes.values()]
        parts = [*(part for part in parts if 1 < part[1] < num), (places, num)]
        columns = []
        for _ in range(2):
            column = math.sqrt(0.5) * generator.normal(size=(rows, len(places)))
            for which, count in parts:
                effects = generator.normal(size=(rows, count))
                column += math.sqrt(0.5 / len(parts)) * effects[:, which]
            columns.append(column)
        return cls(*columns)


def _smallest(power: float, population: _Population, is_clear: Clear | None) -> float | None:
    """The smallest correlation that is clear in enough populations, by halving."""
    if is_clear is None:
        return None
    low, high = 0, STEPS
    while high - low > 1:
        step = (low + high) // 2
        rho = step / STEPS
        mixed = rho * population.one + math.sqrt(1.0 - rho**2) * population.other
        enough = float(is_clear(population.one, mixed).mean()) >= power
        low, high = (low, step) if enough else (step, high)
    return None if high == STEPS else high / STEPS


def _over_all(design: Design) -> Clear:
    """Whether the widest interval over all runs leaves out 0."""
    np = numpy()
    columns = [*design.held.values()]

    def is_clear(x: Array, y: Array) -> Any:
        x, y = (scipy_stats().rankdata(column, axis=1) for column in (x, y))
        groups = [np.arange(x.shape[1]) if design.settings is None else design.settings]
        groups += design.groups.values()
        z, half = _widest(x, y, groups)
        if not columns:
            return abs(z) > half
        basis = np.linalg.qr(np.array([np.ones(x.shape[1]), *columns]).T)[0]
        left_x, left_y = (column - column @ basis @ basis.T for column in (x, y))
        held, half_held = _widest(left_x, left_y, groups)
        return (abs(z) > half) & (abs(held) > half_held) & (z * held > 0)

    return is_clear


def _widest(x: Array, y: Array, groups: Sequence[Sequence[Any]]) -> tuple[Array, Array]:
    """Fisher's z of each row, and half of its widest jackknife interval over these groups."""
    np = numpy()
    half = np.zeros(len(x))
    for group in groups:
        places, num = numbered(list(group))
        blocks = in_blocks(places)
        if num < MIN_CLUSTERS:
            return half, half + math.inf
        kept = (blocks != np.arange(-1, int(blocks.max()) + 1)[:, None]).astype(float).T
        n = kept.sum(axis=0)
        mean_x, mean_y = x @ kept / n, y @ kept / n
        both, xx, yy = (
            product @ kept / n - means
            for product, means in (
                (x * y, mean_x * mean_y),
                (x * x, mean_x**2),
                (y * y, mean_y**2),
            )
        )
        z = np.arctanh(np.clip(both / np.sqrt(np.maximum(xx * yy, 1e-30)), -ALMOST, ALMOST))
        blocks_left = z.shape[1] - 1
        error = ((z[:, 1:] - z[:, :1]) ** 2).sum(axis=1) * (blocks_left - 1) / blocks_left
        half = np.maximum(half, student_quantile(0.95, blocks_left - 1) * np.sqrt(error))
    return z[:, 0], half


def _within(places: Indices, seeds: Sequence[object]) -> Clear | None:
    """Whether what settings and seeds leave is clear; None where too few runs share a setting."""
    np = numpy()
    of_seeds, num_seeds = numbered(list(map(str, seeds)))
    sizes = np.bincount(places)
    used = np.flatnonzero(sizes[places] >= MIN_RUNS)
    if not len(used):
        return None
    rows = [of_seeds[used] == seed for seed in range(num_seeds)] if len(sizes) > 1 else []
    rows += [places[used] == place for place in np.unique(places[used])]
    basis, lengths, _ = np.linalg.svd(np.array(rows, dtype=float).T, full_matrices=False)
    basis = basis[:, lengths > 1e-9 * lengths[0]]
    degrees = len(used) - basis.shape[1]
    if degrees < 2:
        return None
    t = student_quantile(0.95, degrees - 1)
    least = t / math.sqrt(degrees - 1 + t**2)
    groups = [np.flatnonzero(places[used] == place) for place in np.unique(places[used])]

    def ranked(column: Array) -> Array:
        ranks = np.empty_like(column)
        for group in groups:
            ranks[:, group] = scipy_stats().zscore(
                scipy_stats().rankdata(column[:, group], axis=1), axis=1
            )
        return ranks

    def is_clear(x: Array, y: Array) -> Any:
        left = [ranks - ranks @ basis @ basis.T for ranks in map(ranked, (x[:, used], y[:, used]))]
        both, xx, yy = (
            (one * other).sum(axis=1)
            for one, other in ((left[0], left[1]), (left[0], left[0]), (left[1], left[1]))
        )
        return abs(both) > least * np.sqrt(xx * yy)

    return is_clear


def _seen(smallest: float | None) -> str:
    return "nothing" if smallest is None else f"a true correlation of {smallest:.2f} or more"


def _number(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
