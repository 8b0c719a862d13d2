"""Moves that linear algebra finds in any network, whatever its layers are.

What it finds holds for weights chosen at random and in exact arithmetic. It becomes a move of the
network at hand if it also keeps the outputs there: up to rounding, or up to what the ε of a
normalization leaves.

Where nothing but linear maps lies between what writes units and what reads them, any invertible
matrix A can be multiplied to the one and its inverse to the other: between queries and keys of a
head, between its values and the output projection, between the two factors of a low-rank weight.
Rotary positions leave less of it: the two entries of a frequency can be scaled and turned together.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Iterable
from itertools import chain

import torch
from torch import Tensor, nn

from .adding import Keeps, Sorted, Vary, changing, find_shifts
from .bundles import even
from .completeness import MOST_PARAMETERS, FoundGroups, unexplained
from .families import find_families, groups_of
from .jiggling import Jiggler
from .moves import BOTH, DOWN, NOBODY, UP, Group, Move, Role, Site, table_of
from .names import SHIFTS
from .precision import Ideal, deviation
from .tracing import Diverged, viewed
from .verification import Reference

# Of the outputs, that ε may leave: a tenth of what counts as a change of a measure.
REMAINDER = 1e-3
_EXACT = 1e-9  # of the outputs, in float64 and without ε
_NUM_COPIES = 3  # with weights chosen at random, on which every guess must hold
_ONE_COPY_FROM = 1_000_000  # parameters: beyond, memory allows no more
_NOTHING = "linear algebra finds no factors that keep the outputs"

_NO_INPUTS = "no further inputs were given to look for other symmetries"
_NO_SHIFT = {
    "logit_shift": "the loss sees every output for itself, or nothing adds to all of them alike",
    "free_shift": "nothing that is added to parameters is taken away further on",
}
_STRIDES = (2, 3, 4, 6, 8, 12, 16, 32)  # between units of one head, where heads alternate


@dataclasses.dataclass
class NumericMoves:
    """Verified moves by name, why others are absent, and what may have been missed."""

    moves: dict[str, Move] = dataclasses.field(default_factory=dict)
    absent: dict[str, str] = dataclasses.field(default_factory=dict)
    growing: Group | None = None  # multiplies the outputs
    unexplored: str = ""


NAMES = ("free_rescale", "norm_rescale", "unit_mix", "unit_turn", *SHIFTS)


def find_numeric_moves(
    reference: Reference, vary: Vary | None, others: Iterable[Group] = ()
) -> NumericMoves:
    """Look for factors on slices of parameters, then for units that can be mixed or turned.

    `others` can be rescaled as well: what they explain is not missing.
    """
    try:
        families = find_families(reference.model, reference.run, reference.generator)
        copies = _RandomCopies(reference)
    except Diverged as diverged:
        why = f"linear algebra needs gradients at other weights: {diverged}"
        return NumericMoves(absent=dict.fromkeys(NAMES, why), unexplored=why)
    # single units instead of cells of several entries, if they can be told apart
    groups = [
        next((guess for guess in refined(group) if copies.keep(_rescaling(guess))), group)
        for group in groups_of(families)
    ]
    groups = [group for group in groups if copies.keep(_rescaling(group))]
    mixed = [each for each in (mixable(group, copies.keep) for group in groups) if each]
    mixed = [group for group in mixed if copies.keep(changing("unit_mix", group))]
    pairs = [g for g in groups if _linear(g) and all(n % 2 == 0 for n in _entries(g))]
    turned = [group for group in pairs if copies.keep(_turning(group))]
    numeric = NumericMoves(growing=families.growing)
    exact, _ = reference.holding("free_rescale", groups, shared=True)
    _add(numeric, "free_rescale", exact, _NOTHING)
    _add_inexact(numeric, reference, [group for group in groups if group not in exact])
    mixing = reference.holding("unit_mix", mixed, shared=True)[0]
    _add(numeric, "unit_mix", mixing, "no units are linked by linear maps alone")
    turning = reference.holding("unit_turn", turned, shared=True)[0]
    _add(numeric, "unit_turn", turning, "no pairs of entries can be turned together")
    shifted: Sorted = {}
    if vary is not None:
        with contextlib.suppress(Diverged):  # it does not run with other inputs
            shifted = find_shifts(reference, families.shifts, vary, copies.keep)
    for name, reason in _NO_SHIFT.items():
        first, *further = shifted.get(name) or [[]]
        _add(numeric, name, first, _NO_INPUTS if vary is None else reason, further)
    numeric.unexplored = _unexplored(
        reference,
        vary,
        FoundGroups([*groups, *others], mixed, turned, [*chain(*chain(*shifted.values()))]),
    )
    return numeric


class _RandomCopies:
    """Copies with weights chosen at random, run in exact arithmetic, and their outputs."""

    def __init__(self, reference: Reference) -> None:
        self._run = reference.run
        self._copies: list[tuple[nn.Module, Tensor]] = []
        size = sum(parameter.numel() for parameter in reference.model.parameters())
        for _ in range(_NUM_COPIES if size < _ONE_COPY_FROM else 1):
            model = copy.deepcopy(reference.model)
            Jiggler(model, reference.run, reference.generator).vivid()
            self._copies.append((model, self._outputs(model)))

    def keep(self, change: Callable[[nn.Module], None]) -> bool:
        """Whether all of them keep their outputs under a change."""
        for model, outputs in self._copies:
            changed = copy.deepcopy(model)
            with torch.no_grad():
                change(changed)
            if deviation(self._outputs(changed), outputs) > _EXACT:
                return False
        return True

    def _outputs(self, model: nn.Module) -> Tensor:
        with torch.no_grad(), Ideal(leaky=True):
            try:
                return self._run(model)
            except Exception as error:  # the user's code met weights it was not written for
                raise Diverged(f"{type(error).__name__}: {error}") from error


def _rescaling(group: Group) -> Callable[[nn.Module], None]:
    factors = torch.linspace(0.5, 3.0, group.width + 1, dtype=torch.float64)[1:]
    return lambda model: group.rescale(model, factors)


def _turning(group: Group) -> Callable[[nn.Module], None]:
    angles = torch.linspace(0.5, 3.0, group.width, dtype=torch.float64)
    return lambda model: group.turn(model, angles)


def _add(
    numeric: NumericMoves,
    name: str,
    groups: list[Group],
    otherwise: str,
    further: Iterable[list[Group]] = (),
) -> None:
    if groups:
        towards = (UP,) if name in SHIFTS else (UP, DOWN, BOTH)
        sets = tuple(map(tuple, further))
        numeric.moves[name] = Move(name, tuple(groups), towards=towards, further=sets)
    else:
        numeric.absent[name] = otherwise


def _add_inexact(numeric: NumericMoves, reference: Reference, groups: list[Group]) -> None:
    """Moves that only an ε notices: upwards it matters less and less, downwards more."""
    name = "norm_rescale"
    loose = dataclasses.replace(reference, tolerance=REMAINDER)
    upwards, dropped = loose.holding(name, groups, shared=True)
    if not upwards:
        numeric.absent[name] = "; ".join(dropped) or "nothing is normalized whose size is free"
        return
    downwards = loose.holding(name, upwards, shared=True, towards=DOWN)[0]
    towards = (UP, DOWN, BOTH) if downwards == upwards else (UP,)
    numeric.moves[name] = Move(name, tuple(upwards), towards=towards, remainder=REMAINDER)


def _unexplored(reference: Reference, vary: Vary | None, explained: FoundGroups) -> str:
    """Which symmetries may have been missed; nothing if none."""
    count = sum(p.numel() for p in reference.model.parameters())
    if vary is None:
        return _NO_INPUTS
    if count > MOST_PARAMETERS:
        return (
            f"with {count:,} parameters the network is too large to rule out other symmetries "
            f"(the limit is {MOST_PARAMETERS:,})"
        )
    try:
        left = unexplained(
            reference.model,
            lambda index: viewed(vary(index), reference.seen),
            explained,
            reference.generator,
        )
    except Diverged as diverged:
        return f"other symmetries could not be ruled out: {diverged}"
    if left > 0:
        return f"{left} further directions in the weights keep the outputs, and no move covers them"
    return ""


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
        sizes = [size for size in range(group.width, 2, -1) if group.width % size == 0]
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
        and all(even(torch.tensor(site.units), group.width) for site in group.sites)
    )
