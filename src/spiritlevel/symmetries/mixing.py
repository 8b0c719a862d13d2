"""Find units that can be mixed with each other, and pairs of entries that can be turned.

Where nothing but linear maps lies between what writes units and what reads them, any invertible
matrix A can be multiplied to the one and its inverse to the other: between queries and keys of a
head, between its values and the output projection, between the two factors of a low-rank weight.
Rotary positions leave less of it: the two entries of a frequency can be scaled and turned together.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch

from .moves import NOBODY, Group, Role, Site, table_of

_STRIDES = (2, 3, 4, 6, 8, 12, 16, 32)  # between units of one head, where heads alternate

Keeps = Callable[[Callable[[torch.nn.Module], None]], bool]


def mixable(group: Group, keeps: Keeps) -> Group | None:
    """The group with the largest equal blocks of units that mix; None if no two units do.

    `keeps` says whether the outputs stay as they are when a copy is changed.
    """
    if group.width < 2 or not _linear(group):
        return None

    def pair_mixes(other: int) -> bool:
        matrix = torch.eye(group.width, dtype=torch.float64)
        matrix[0, other] = 1.0
        return keeps(lambda model: group.mix(model, matrix))

    if pair_mixes(1):
        sizes = [size for size in _divisors(group.width) if size > 2]
        size = next((size for size in sizes if pair_mixes(size - 1)), 2)
        blocks = [unit // size for unit in range(group.width)]
    else:
        strides = {*_STRIDES, group.width // 2}
        possible = sorted(s for s in strides if 1 < s < group.width and group.width % s == 0)
        stride = next((stride for stride in possible if pair_mixes(stride)), None)
        if stride is None:
            return None
        blocks = [unit % stride for unit in range(group.width)]
    return dataclasses.replace(group, blocks=tuple(blocks))


def turnable(group: Group) -> Group | None:
    """The group if all of its units are pairs of entries; whether they turn is to be verified."""
    return group if _linear(group) and all(n % 2 == 0 for n in _entries(group)) else None


def refined(group: Group) -> list[Group]:
    """Guesses at the single units behind cells of several entries each; they are to be verified.

    Entries are numbered alike wherever the units are written or read. Where one place has several
    times as many as another, each unit has neighbours there, or each comes back after all others.
    """
    entries = _entries(group)
    base = min(entries)
    if base == 1 or any(n % base for n in entries):
        return []
    side_by_side = [_refined(site, group.width, base, repeat=True) for site in group.sites]
    in_turns = [_refined(site, group.width, base, repeat=False) for site in group.sites]
    guesses = [Group(group.width * base, tuple(sites)) for sites in (side_by_side, in_turns)]
    return guesses if guesses[0] != guesses[1] else guesses[:1]


def _refined(site: Site, width: int, base: int, *, repeat: bool) -> Site:
    table = table_of(torch.tensor(site.units), width)  # shape: (width, entries of a cell)
    within = torch.arange(table.shape[1])
    within = within // (table.shape[1] // base) if repeat else within % base
    units = torch.full((len(site.units),), NOBODY)
    units[table] = torch.arange(width)[:, None] * base + within
    return dataclasses.replace(site, units=tuple(units.tolist()))


def _entries(group: Group) -> list[int]:
    """How many entries a unit has at each site."""
    return [sum(unit != NOBODY for unit in site.units) // group.width for site in group.sites]


def _linear(group: Group) -> bool:
    """Whether units are multiplied and divided by the factor itself, equally many at every site."""
    return (
        {site.role for site in group.sites} == {Role.TIMES, Role.OVER}
        and all(site.power == 1 for site in group.sites)
        and all(_evenly(site, group.width) for site in group.sites)
    )


def _evenly(site: Site, width: int) -> bool:
    units = torch.tensor([unit for unit in site.units if unit != NOBODY])
    counts = units.bincount(minlength=width)
    return bool((counts == counts[0]).all())


def _divisors(width: int) -> list[int]:
    """From large to small."""
    return [size for size in range(width, 0, -1) if width % size == 0]
