"""Whether a network has symmetries that no move was found for.

All weights are varied at once: a direction in which no output changes, to first order and for many
inputs, belongs to a symmetry. There must be as many such directions as the moves make, for weights
chosen at random. A wide network is tested as a narrow one: all but a few of its units are set to 0,
with everything that leads to them and from them.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from .jiggling import Gradients, Jiggler
from .moves import NOBODY, Group
from .precision import Ideal
from .shifting import ShiftEquations, in_blocks
from .tracing import Run, differentiable

MOST_ENTRIES = 1000  # varied at once; the time grows with their cube
MOST_PARAMETERS = 200_000  # of a network that is tested at all: each entry takes a backward pass
_SPARE = 30  # equations more than unknowns
_ROUND_OFF = 1e-11  # relative: true zeros are a hundred times smaller
_NO_EFFECT = 1e-13  # of the largest
_WIDTHS = (64, 32, 16, 12, 8, 6, 5, 4, 3, 2)  # units that are left, from many to few
_AT_ONCE = 16  # equations for each choice of the inputs
_DRAWS = 3  # of the weights: some leave a unit on one side of its kink, which looks like a symmetry
_STEP = 1e-4  # of a move: its square is what first order leaves out


Change = Callable[[float], None]


@dataclasses.dataclass(frozen=True)
class FoundGroups:
    """The groups that moves were found for."""

    rescaled: Sequence[Group]
    mixed: Sequence[Group]
    turned: Sequence[Group]
    shifted: Sequence[Group]


def unexplained(
    model: nn.Module,
    vary: Callable[[int], Run],
    explained: FoundGroups,
    generator: torch.Generator,
) -> int:
    """How many independent directions keep the outputs and belong to no move.

    `vary(k)` runs a model on the k-th choice of inputs. Raises Diverged if it does not run.
    """
    narrow = copy.deepcopy(model)
    jiggler = Jiggler(narrow, vary(0), generator)
    width, chosen = _narrowed(jiggler.parameters, explained)
    fewest = MOST_ENTRIES
    for _ in range(_DRAWS):
        jiggler.vivid()
        with torch.no_grad():
            for name, parameter in jiggler.parameters.items():
                left = chosen[name].double().mean().clamp(min=1 / parameter.numel())
                parameter.mul_(chosen[name] / left.sqrt())  # as strong as if it were whole
        rows = _equations(narrow, jiggler, vary, chosen)
        directions = torch.cat(
            [
                _directions(narrow, explained, width, chosen),
                *_added(narrow, explained.shifted, rows, chosen),
            ]
        )
        alive = rows.abs().amax(dim=0) > 0
        rows, directions = _normalized(rows[:, alive]), directions[:, alive]
        count = int(alive.sum()) - _rank(rows, _ROUND_OFF) - _rank(directions, _STEP)
        if count <= 0:
            return 0
        if count == fewest:
            break
        fewest = min(fewest, count)
    return fewest


def _normalized(rows: Tensor) -> Tensor:
    """Columns of norm 1, and of 0 where there is only rounding: nothing is left of their effect."""
    norms = rows.norm(dim=0)
    return torch.where(norms > _NO_EFFECT * norms.max(), rows / norms, 0.0)


def _equations(
    narrow: nn.Module, jiggler: Jiggler, vary: Callable[[int], Run], chosen: dict[str, Tensor]
) -> Tensor:
    """How sums of outputs change with every chosen entry, for many inputs."""
    needed = sum(int(mask.sum()) for mask in chosen.values()) + _SPARE
    rows: list[Tensor] = []
    while sum(map(len, rows)) < needed:
        with Ideal(leaky=True):
            outputs = differentiable(vary(len(rows)), narrow)
        found = jiggler.gradients(outputs, min(outputs.numel(), _AT_ONCE))
        rows.append(_flat(found.gradients, chosen))
    return torch.cat(rows)


def _narrowed(
    parameters: dict[str, nn.Parameter], explained: FoundGroups
) -> tuple[int, dict[str, Tensor]]:
    """How many units stay, as many as can be tested; and the entries that stay with them."""
    for width in _WIDTHS:
        masks = _masks(parameters, explained, width)
        if sum(int(mask.sum()) for mask in masks.values()) <= MOST_ENTRIES:
            break
    return width, masks


def _masks(
    parameters: dict[str, nn.Parameter], explained: FoundGroups, width: int
) -> dict[str, Tensor]:
    """Every dimension keeps its first entries; those of units, the entries of the first units."""
    along: dict[tuple[str, int], Tensor] = {}
    for name, parameter in parameters.items():
        for dim, size in enumerate(parameter.shape):
            along[name, dim] = torch.arange(size) < width
    for group in explained.rescaled:
        for site in group.sites:
            if group.width == 1 or site.groups > 1:
                continue
            units = torch.tensor(site.units)
            owned = units != NOBODY
            along[site.name, site.dim][owned] = (units < width)[owned]
    masks = {}
    for name, parameter in parameters.items():
        mask = torch.ones_like(parameter, dtype=torch.bool)
        for dim in range(parameter.dim()):
            shape = [-1 if other == dim else 1 for other in range(parameter.dim())]
            mask &= along[name, dim].to(mask.device).view(shape)
        masks[name] = mask
    return masks


def _flat(tensors: dict[str, Tensor], chosen: dict[str, Tensor]) -> Tensor:
    """The chosen entries of all parameters side by side; the first dimension is carried along."""
    count = max(len(tensor) for tensor in tensors.values())
    parts = []
    for name, mask in chosen.items():
        given = tensors.get(name)
        parts.append(
            torch.zeros(count, int(mask.sum())) if given is None else given[:, mask].detach().cpu()
        )
    return torch.cat([part.double() for part in parts], dim=1)


def _directions(
    narrow: nn.Module, explained: FoundGroups, width: int, chosen: dict[str, Tensor]
) -> Tensor:
    """What each move does to the chosen entries, to first order."""
    named = {name: p for name, p in narrow.named_parameters() if name in chosen}
    home = {name: p.detach().clone() for name, p in named.items()}

    def after(change: Change, step: float) -> Tensor:
        change(step)
        flat = _flat({name: p[None] for name, p in named.items()}, chosen)
        for name, parameter in named.items():
            parameter.copy_(home[name])
        return flat

    with torch.no_grad():
        changes = _small_moves(narrow, explained, width)
        found = [after(change, _STEP) - after(change, -_STEP) for change in changes]
    return torch.cat([torch.zeros(1, sum(int(m.sum()) for m in chosen.values())).double(), *found])


def _added(
    narrow: nn.Module, shifted: Sequence[Group], rows: Tensor, chosen: dict[str, Tensor]
) -> Iterator[Tensor]:
    """Directions of vectors that can be added at these weights, to the units that are left."""
    blank = copy.deepcopy(narrow)
    named = {name: p for name, p in blank.named_parameters() if name in chosen}
    shapes = {group.shape for group in shifted}
    every = in_blocks(named, MOST_ENTRIES)
    slices = {place: found for place, found in every.items() if place.shape in shapes}
    system = ShiftEquations(slices, torch.Generator().manual_seed(0))
    system.take(_unflattened(rows, named, chosen))
    with torch.no_grad():
        for group in system.solved().groups():
            for vector in torch.eye(group.width * math.prod(group.shape)).double():
                for parameter in named.values():
                    parameter.zero_()
                group.shift(blank, vector.view(group.width, *group.shape))
                added = _flat({name: p[None] for name, p in named.items()}, chosen)
                if float((rows @ added.T).norm()) <= _ROUND_OFF * float(rows.norm()):
                    yield added


def _unflattened(
    rows: Tensor, named: dict[str, nn.Parameter], chosen: dict[str, Tensor]
) -> Gradients:
    gradients, start = {}, 0
    for name, mask in chosen.items():
        gradients[name] = rows.new_zeros(len(rows), *mask.shape)
        count = int(mask.sum())
        gradients[name][:, mask.cpu()] = rows[:, start : start + count]
        start += count
    return Gradients(rows.new_zeros(len(rows)), dict(named), gradients)


def _small_moves(narrow: nn.Module, explained: FoundGroups, width: int) -> Iterator[Change]:
    """Every independent move of the units that are left, as a function of a small step."""
    for group in explained.rescaled:
        for one in torch.eye(group.width, dtype=torch.float64)[:width]:
            yield functools.partial(_rescale, narrow, group, one)
    for group in explained.mixed:
        for a, b in itertools.permutations(range(min(width, group.width)), 2):
            if group.blocks[a] == group.blocks[b]:
                yield functools.partial(_mix, narrow, group, a, b)
    for group in explained.turned:
        for one in torch.eye(group.width, dtype=torch.float64)[:width]:
            yield functools.partial(_turn, narrow, group, one)


def _rescale(narrow: nn.Module, group: Group, one: Tensor, step: float) -> None:
    group.rescale(narrow, torch.exp(step * one))


def _mix(narrow: nn.Module, group: Group, a: int, b: int, step: float) -> None:
    matrix = torch.eye(group.width, dtype=torch.float64)
    matrix[a, b] = step
    group.mix(narrow, matrix)


def _turn(narrow: nn.Module, group: Group, one: Tensor, step: float) -> None:
    group.turn(narrow, step * one)


def _rank(rows: Tensor, tolerance: float) -> int:
    """The number of independent rows; scaled so that none is taken for zero by its size."""
    sizes = rows.norm(dim=1, keepdim=True)
    rows = rows[sizes.flatten() > 0] / sizes[sizes.flatten() > 0]
    if not len(rows):
        return 0
    singular = torch.linalg.svdvals(rows)
    return int((singular > tolerance * singular[0]).sum())
