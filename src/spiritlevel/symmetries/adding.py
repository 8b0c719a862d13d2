"""What can be added to the parameters of a network: verified, and sorted by what takes it away."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from .jiggling import Jiggler
from .moves import Group, Move
from .names import SHIFTS
from .precision import Ideal
from .shifting import SPARE, ShiftEquations, Shifts, one_by_one, sparing
from .tracing import Run, View, differentiable, viewed
from .verification import Reference

MOST_SLICES = 800  # for one shape of a vector: the time grows with their cube
MOST_PARAMETERS = 200_000  # beyond, each equation takes a long backward pass
_AT_ONCE = 64  # equations for each choice of the inputs
_AT_EACH = 8  # the same, where other inputs matter more than other outputs
_FURTHER = 16  # equations beyond the number of solutions that they test
COMMON, FREE = SHIFTS

Vary = Callable[[int], Run]
Keeps = Callable[[Callable[[nn.Module], None]], bool]
Sorted = dict[str, list[list[Group]]]  # by the name of the move, in sets that hold together


def find_shifts(reference: Reference, shifts: Shifts, vary: Vary, keep: Keeps) -> Sorted:
    """The verified groups of each move, in sets that hold together.

    `shifts` hold for all weights on a few samples; those that hold for other inputs are verified by
    `keep` on copies with random weights. Further ones hold for these weights alone: what one bias
    adds and a linear map passes on, another one subtracts. What is added to the logits alike by
    other layers than the head is one of these.
    """
    by_name = _sorted(reference, shifts, vary)
    found = {
        name: [group for group in each.groups() if keep(changing(name, group))]
        for name, each in by_name.items()
    }
    for name, shifts in (_local(reference, vary) or {}).items():
        found[FREE] += shifts.beyond(by_name[name]).groups()
    return {name: _lasting(reference, name, groups) for name, groups in found.items()}


def _sorted(reference: Reference, shifts: Shifts, vary: Vary) -> dict[str, Shifts]:
    """Vectors that leave the outputs as they are, and those that only the loss does not see."""
    view = reference.seen or _all
    held = _holding(reference, shifts, lambda index: viewed(vary(index), view))
    free = held if reference.seen is None else _holding(reference, held, vary)
    return {FREE: free, COMMON: held.without(free)}


def _holding(reference: Reference, shifts: Shifts, vary: Vary) -> Shifts:
    """The vectors among `shifts` that hold for other inputs, too."""
    taken = 0
    for index in range(shifts.most + _FURTHER):
        if taken >= shifts.most + _FURTHER:
            break
        jiggler = Jiggler(copy.deepcopy(reference.model), vary(index), reference.generator)
        for drawn in jiggler.draws(_AT_EACH, _AT_EACH):
            shifts.system.take(drawn)
            taken += len(drawn.sums)
    return shifts.system.again(shifts)


def _local(reference: Reference, vary: Vary) -> dict[str, Shifts] | None:
    """What can be added at these weights alone; None where the network is too large for it."""
    jiggler = Jiggler(copy.deepcopy(reference.model), reference.run, reference.generator)
    size = sum(parameter.numel() for parameter in jiggler.parameters.values())
    slices = one_by_one(jiggler.parameters, MOST_SLICES) if size <= MOST_PARAMETERS else {}
    if not slices:
        return None
    system, seen = ShiftEquations(slices, reference.generator), reference.seen or _all

    def take(needed: int, view: View, first: int) -> None:
        index, taken = first, 0
        while taken < needed:
            with Ideal(leaky=True):
                outputs = view(differentiable(vary(index), jiggler.model))
            drawn = jiggler.gradients(outputs, min(outputs.numel(), _AT_ONCE))
            system.take(drawn)
            index, taken = index + 1, taken + len(drawn.sums)

    take(system.most + SPARE, seen, 0)
    held = free = system.solved()
    if reference.seen is not None and held.most:
        take(held.most + SPARE, _all, system.most)
        free = system.again(held)
    return {FREE: free, COMMON: held.without(free)}


def _all(outputs: Tensor) -> Tensor:
    return outputs


def _lasting(reference: Reference, name: str, groups: Sequence[Group]) -> list[list[Group]]:
    """The groups that keep the outputs of the network, or those of their vectors that do.

    In sets that hold together: what is added at one place can depend on what is added at another.
    """
    single = [group for each in groups for group in _parts(reference, name, each)]
    sets: list[list[Group]] = []
    for group in single:
        for chosen in sets:
            if reference.holds(name, [*chosen, group]):
                chosen.append(group)
                break
        else:
            sets.append([group])
    return sets


def _parts(reference: Reference, name: str, group: Group) -> list[Group]:
    """The group if it holds as a whole, or as many of its vectors as do.

    To first order, a gain can be multiplied as if something were added to it. So sums of the
    vectors are tried that leave one of the parameters as it is.
    """
    if reference.holds(name, [group]):
        return [group]
    spared = (sparing(group, site) for site in group.sites)
    for part in sorted(filter(None, spared), key=lambda part: -part.width):
        if reference.holds(name, [part]):
            return [part]
    singles = group.singles() if group.width > 1 else []
    return [single for single in singles if reference.holds(name, [single])]


def changing(name: str, group: Group) -> Callable[[nn.Module], None]:
    """The move of this name, of one group, always with the same random numbers."""
    return lambda model: Move(name, (group,)).change(model, torch.Generator().manual_seed(0))
