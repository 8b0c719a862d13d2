"""Within settings: a permutation of seeds and of settings, exact without any formula.

What is left of a run is its rank within its setting, less the mean of its seed over all settings
(Pearson: its value). Under the null hypothesis measure and target have nothing to do with each
other within settings, so settings of the target may be exchanged for each other, and so may seeds,
without a change to the distribution of the correlation. Seeds are exchanged in all settings alike:
what a seed does in every setting is gone before, so that it neither adds evidence nor noise.

That is exact where settings may be exchanged, also if every seed acts on all of them alike. It is
not where a seed acts on settings with one batch size otherwise than on those with another: of true
nulls in which that decides 70 %, it then calls 15 to 30 % clear. Exchanging seeds alone, in all
settings at once, is exact whatever settings have in common, but has few orders: with four seeds p
is at least 1/24. So its p stands beside the other.

The interval is the same test turned around on Fisher's z: all correlations that are no further away
than 95 % of the permuted ones are from 0. So it leaves out 0 exactly where p < 0.05.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence
from typing import Literal

from .clusters import ALMOST
from .points import Array, Indices, numpy, scipy_stats

LevelKind = Literal["pearson", "spearman"]
ORDERS = 2000  # the one that was seen, and 1,999 drawn with a fixed seed
DIGITS = 10  # of Fisher's z: permuted ranks often give the same correlation but for rounding


@dataclasses.dataclass(frozen=True)
class Permuted:
    """The correlation of what is left, with interval and p."""

    value: float
    low: float
    high: float
    p: float
    p_seeds: float = math.nan  # of seeds alone, exchanged in all settings at once; nan without any


def two_way(
    kind: LevelKind,
    x: Array,
    y: Array,
    groups: Sequence[Indices],
    seeds: Sequence[str],
    *,
    confidence: float = 0.95,
) -> Permuted:
    """Correlation within settings, what seeds do in every setting taken out.

    Args:
        kind: "pearson" or "spearman".
        x: the measure.
        y: the target; neither may be constant in a group.
        groups: the runs of each setting.
        seeds: that of each run. Settings with the same seeds are exchanged for each other; if there
            is no other with these, or none are given, only the runs of a setting are.
        confidence: of the interval.
    """
    np = numpy()
    products = np.zeros(ORDERS)
    squares = 0.0, 0.0
    blocks = _blocks(groups, seeds)
    for i, block in enumerate(blocks):
        u, v = (_left(kind, column, block) for column in (x, y))
        # what is no seed of other settings is exchanged by itself
        rows, columns = _orders(len(v), i + 1), _orders(v.shape[1], i + 1 if len(v) == 1 else 0)
        in_order = v[rows[:, :, None], columns[:, None, :]]
        products += np.einsum("ij,nij->n", u, in_order)
        squares = squares[0] + float((u**2).sum()), squares[1] + float((v**2).sum())
    scale = math.sqrt(squares[0] * squares[1])
    if scale == 0.0:
        return Permuted(math.nan, math.nan, math.nan, math.nan)
    values = np.clip(products / scale, -ALMOST, ALMOST)
    z = np.round(np.arctanh(values), DIGITS)
    seen, others = float(z[0]), np.sort(abs(z[1:]))[::-1]
    p = float((1 + (others >= abs(seen)).sum()) / ORDERS)
    last = math.ceil((1.0 - confidence) * ORDERS - 1e-9) - 2  # p is at the level if this one is
    half = float(others[last]) if last >= 0 else math.inf
    value = float(products[0] / scale)
    ends = math.tanh(seen - half), math.tanh(seen + half)
    return Permuted(value, *ends, p, _p_of_seeds(kind, x, y, max(blocks, key=np.size)))


def _p_of_seeds(kind: LevelKind, x: Array, y: Array, block: Array) -> float:
    """Exchanging seeds alone, in the settings that have most of the runs in common."""
    np = numpy()
    if len(block) == 1:
        return math.nan
    num = block.shape[1]
    is_few = math.factorial(num) <= ORDERS
    orders = np.array(list(itertools.permutations(range(num)))) if is_few else _orders(num, 0)
    u, v = (_left(kind, column, block) for column in (x, y))
    products = abs(np.einsum("ij,inj->n", u, v[:, orders]))
    return float((products >= products[0] - 1e-9).mean())  # equal but for rounding


def _blocks(groups: Sequence[Indices], seeds: Sequence[str]) -> list[Array]:
    """The runs of settings that may be exchanged: a row a setting, a column a seed."""
    np = numpy()
    blocks: dict[tuple[str, ...], list[Indices]] = {}
    alone: list[Array] = []
    for group in groups:
        named = sorted((seeds[place], place) for place in group) if seeds else []
        key = tuple(seed for seed, _ in named)
        if len(set(key)) < len(group):
            alone.append(np.array([group]))
        else:
            blocks.setdefault(key, []).append(np.array([place for _, place in named]))
    return [*alone, *(np.array(rows) for rows in blocks.values())]


def _left(kind: LevelKind, column: Array, block: Array) -> Array:
    """Each setting centred and of length 1, less the mean of each seed if it is in several."""
    np = numpy()
    rows = column[block]
    if kind == "spearman":
        rows = scipy_stats().rankdata(rows, axis=1)
    rows = rows - rows.mean(axis=1, keepdims=True)
    rows = rows / np.sqrt((rows**2).sum(axis=1, keepdims=True))
    return rows - rows.mean(axis=0) if len(rows) > 1 else rows


@functools.lru_cache(maxsize=256)
def _orders(num: int, stream: int) -> Indices:
    """The order as it is, and others drawn; the same for the same arguments. Not to be changed."""
    np = numpy()
    generator = np.random.default_rng([num, stream])
    orders = generator.permuted(np.tile(np.arange(num), (ORDERS, 1)), axis=1)
    orders[0] = np.arange(num)
    orders.flags.writeable = False
    return orders
