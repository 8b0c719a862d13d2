"""Moves that linear algebra finds in any network, whatever its layers are.

What it finds holds for weights chosen at random and in exact arithmetic. It becomes a move of the
network at hand if it also keeps the outputs there: up to rounding, or up to what the ε of a
normalization leaves.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from .completeness import MOST_PARAMETERS, FoundGroups, unexplained
from .families import find_families, groups_of, growing_group
from .ideal import Ideal
from .jiggling import Jiggler
from .mixing import mixable, refined, turnable
from .moves import BOTH, DOWN, UP, Group, Move
from .precision import deviation
from .tracing import Diverged, Run
from .verification import Reference

# Of the outputs, that ε may leave: a tenth of what counts as a change of a measure.
REMAINDER = 1e-3
_EXACT = 1e-9  # of the outputs, in float64 and without ε
_NUM_COPIES = 3  # with weights chosen at random, on which every guess must hold
_ONE_COPY_FROM = 1_000_000  # parameters: beyond, memory allows no more
_NOTHING = "linear algebra finds no factors that keep the outputs"

Vary = Callable[[int], Run]


@dataclasses.dataclass
class NumericMoves:
    """Verified moves by name, why others are absent, and what may have been missed."""

    moves: dict[str, Move] = dataclasses.field(default_factory=dict)
    absent: dict[str, str] = dataclasses.field(default_factory=dict)
    growing: Group | None = None  # multiplies the outputs
    unexplored: str = ""


NAMES = ("free_rescale", "norm_rescale", "unit_mix", "unit_turn")


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
    groups = [_finest(group, copies) for group in groups_of(families)]
    groups = [group for group in groups if copies.keep(_rescaling(group))]
    mixed = [each for each in (mixable(group, copies.keep) for group in groups) if each]
    mixed = [group for group in mixed if copies.keep(_mixing(group))]
    turned = [group for group in groups if turnable(group) and copies.keep(_turning(group))]
    numeric = NumericMoves(growing=growing_group(families))
    exact, inexact = _split(reference, groups)
    _add(numeric, "free_rescale", exact, _NOTHING)
    _add_inexact(numeric, reference, inexact)
    mixing = reference.holding("unit_mix", mixed, shared=True)[0]
    _add(numeric, "unit_mix", mixing, "no units are linked by linear maps alone")
    turning = reference.holding("unit_turn", turned, shared=True)[0]
    _add(numeric, "unit_turn", turning, "no pairs of entries can be turned together")
    numeric.unexplored = _unexplored(
        reference, vary, FoundGroups([*groups, *others], mixed, turned)
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


def _finest(group: Group, copies: _RandomCopies) -> Group:
    """Single units instead of cells of several entries, if they can be told apart."""
    return next((guess for guess in refined(group) if copies.keep(_rescaling(guess))), group)


def _rescaling(group: Group) -> Callable[[nn.Module], None]:
    factors = torch.linspace(0.5, 3.0, group.width + 1, dtype=torch.float64)[1:]
    return lambda model: group.rescale(model, factors)


def _mixing(group: Group) -> Callable[[nn.Module], None]:
    def change(model: nn.Module) -> None:
        Move("unit_mix", (group,)).change(model, torch.Generator().manual_seed(0))

    return change


def _turning(group: Group) -> Callable[[nn.Module], None]:
    angles = torch.linspace(0.5, 3.0, group.width, dtype=torch.float64)
    return lambda model: group.turn(model, angles)


def _split(reference: Reference, groups: list[Group]) -> tuple[list[Group], list[Group]]:
    """Groups that keep the outputs of the network up to rounding, and all others."""
    exact, _ = reference.holding("free_rescale", groups, shared=True)
    return exact, [group for group in groups if group not in exact]


def _add(numeric: NumericMoves, name: str, groups: list[Group], otherwise: str) -> None:
    if groups:
        numeric.moves[name] = Move(name, tuple(groups))
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
        return "no further inputs were given to look for other symmetries"
    if count > MOST_PARAMETERS:
        return (
            f"with {count:,} parameters the network is too large to rule out other symmetries "
            f"(the limit is {MOST_PARAMETERS:,})"
        )
    try:
        left = unexplained(reference.model, vary, explained, reference.generator)
    except Diverged as diverged:
        return f"other symmetries could not be ruled out: {diverged}"
    if left > 0:
        return f"{left} further directions in the weights keep the outputs, and no move covers them"
    return ""
