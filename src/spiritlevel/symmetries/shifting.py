"""Find vectors that can be added to parameters without a change of the outputs.

Added to all rows of the head, a vector adds one number to all logits, which a softmax takes away.
A normalization takes away the mean, attention what a bias adds to all keys, and what one bias adds
another one can subtract. The vectors added to slices of parameters solve a linear system: no
gradient may have a part along them. What holds for every choice of the weights also holds for
vectors of any length.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .cells import ZERO, CutDimension, completed, echelon, null_space, rounded
from .jiggling import Gradients
from .moves import NO_DIM, Group, Role, Site

SPARE = 24  # equations more than unknowns
_ROUND_OFF = 1e-9  # relative, of equations in float64
_SMALLEST = 1e-5  # of the largest gradient: times the above, that is rounding

Shape = tuple[int, ...]


class Place(NamedTuple):
    """What a vector can be added to: slices along one dimension, counted from the last."""

    shape: Shape  # of the vector
    dim: int


@dataclasses.dataclass(frozen=True)
class Slices:
    """A dimension of a parameter: a vector of the other dimensions is added to slices along it."""

    cut: CutDimension
    whole: bool  # the parameter itself has the vector's shape: it is the only slice

    def sums(self, gradients: Tensor, vector: Tensor) -> Tensor:
        """The part of each slice's gradient along the vector; samples come first."""
        shape = list(gradients.shape[1:])
        if shape and not self.whole:
            shape[self.cut.dim] = 1
        return self.cut.sums(gradients * vector.to(gradients).view(shape))

    def entries(self, vectors: Tensor) -> Tensor:
        """The coefficient of every entry along the dimension, a row for each vector."""
        values = vectors[:, self.cut.place]
        return values if self.whole else torch.stack([self.cut.entries(row) for row in values])

    def site(self, vectors: Tensor) -> Site:
        """Where the vectors are added, with their coefficients."""
        owner, _, tensor = self.cut.name.rpartition(".")
        coefficients = tuple(tuple(row) for row in self.entries(vectors).tolist())
        dim = NO_DIM if self.whole else self.cut.dim
        return Site(owner, tensor, dim, (), Role.PLUS, coefficients=coefficients)


@dataclasses.dataclass(frozen=True)
class Equations:
    """Rows that solutions are orthogonal to, and the sizes of the parts that each entry sums."""

    rows: Tensor
    sizes: Tensor  # 0 only for what no sample uses

    def solutions(self) -> Tensor:
        """A basis whose vectors have a 1 where all others have a 0."""
        none = self.rows.new_zeros(0, self.rows.shape[1])
        return simple(null_space(self.rows, self.sizes, none, _ROUND_OFF))

    def solved_by(self, basis: Tensor) -> Tensor:
        """Those combinations of the vectors that are solutions."""
        within = Equations(self.rows @ basis.T, self.sizes @ basis.abs().T)
        return simple(within.solutions() @ basis)


def simple(basis: Tensor) -> Tensor:
    """The same space, with a 1 in each vector where all others have a 0."""
    return echelon(basis, list(range(basis.shape[1])))


def beyond(basis: Tensor, known: Tensor) -> Tensor:
    """What the basis spans besides the known vectors, which are a simple basis."""
    for vector in known:
        pivot = int((vector.abs() > ZERO).nonzero()[0])
        basis = basis - basis[:, pivot, None] / vector[pivot] * vector
    return simple(basis)


@dataclasses.dataclass(frozen=True)
class Shifts:
    """Solutions for vectors of each shape, as coefficients of slices."""

    system: ShiftEquations
    found: Mapping[Place, Tensor]

    @property
    def most(self) -> int:
        """The number of solutions for one shape."""
        return max(map(len, self.found.values()), default=0)

    def groups(self) -> list[Group]:
        """One group for all vectors that are added to the same parameters."""
        return [
            group
            for place, vectors in self.found.items()
            for group in grouped(vectors, self.system.slices[place], place.shape)
        ]

    def by_entry(self, place: Place) -> Tensor:
        """The solutions for one shape, with a coefficient for every entry along each dimension."""
        vectors, slices = self.found[place], self.system.slices[place]
        if not len(vectors):
            return torch.zeros(0, sum(each.cut.size for each in slices)).double()
        return torch.cat([each.entries(vectors) for each in slices], dim=1)

    def in_simple_numbers(self) -> Shifts:
        """The same, where coefficients that hold for all weights are simple up to rounding."""
        return Shifts(self.system, {place: rounded(each) for place, each in self.found.items()})

    def without(self, others: Shifts) -> Shifts:
        """The solutions besides others of the same system."""
        found = {
            place: beyond(vectors, others.found[place]) for place, vectors in self.found.items()
        }
        return Shifts(self.system, found)

    def beyond(self, known: Shifts) -> Shifts:
        """The solutions besides those that are known; here every entry is a slice."""
        found = {
            place: beyond(vectors, known.by_entry(place)) for place, vectors in self.found.items()
        }
        return Shifts(self.system, found)


class ShiftEquations:
    """For every shape of a vector the slices that it can be added to, and equations for them."""

    def __init__(
        self, slices: Mapping[Place, Sequence[Slices]], generator: torch.Generator
    ) -> None:
        self.slices = slices
        self._vectors = {
            place: torch.randn(place.shape, generator=generator, device=generator.device).cpu()
            for place in self.slices
        }
        self._taken: dict[Place, list[Equations]] = {place: [] for place in self.slices}

    @property
    def most(self) -> int:
        """The number of unknowns for one shape."""
        counts = (sum(each.cut.count for each in slices) for slices in self.slices.values())
        return max(counts, default=0)

    def take(self, drawn: Gradients) -> None:
        """Keep how sums of outputs change along every slice."""
        for place, slices in self.slices.items():
            self._taken[place].append(equations(drawn, slices, self._vectors[place]))

    def solved(self) -> Shifts:
        """The solutions of what was taken; the equations are forgotten."""
        return Shifts(self, {place: self._solved(place) for place in self.slices})

    def again(self, shifts: Shifts) -> Shifts:
        """The solutions among those of other equations; the equations are forgotten."""
        found = {}
        for place, vectors in shifts.found.items():
            taken = self._together(place)
            found[place] = taken.solved_by(vectors) if len(vectors) else vectors
        return Shifts(self, found)

    def _solved(self, place: Place) -> Tensor:
        taken, slices = self._together(place), self.slices[place]
        if not bool(taken.sizes.any()):
            return taken.rows.new_zeros(0, taken.rows.shape[1])
        idle = taken.sizes.amax(dim=0) == 0
        vectors = completed(taken.solutions(), [each.cut for each in slices], idle)
        # what is added to nothing but whole vectors is found entry by entry as well
        cut = torch.cat([torch.full((each.cut.count,), not each.whole) for each in slices])
        return vectors[(vectors[:, cut].abs() > ZERO).any(dim=1)]

    def _together(self, place: Place) -> Equations:
        taken, self._taken[place] = self._taken[place], []
        return Equations(torch.cat([e.rows for e in taken]), torch.cat([e.sizes for e in taken]))


def equations(drawn: Gradients, slices: Sequence[Slices], vector: Tensor) -> Equations:
    """How sums of outputs change if the vector is added to each slice.

    What a softmax within the network takes away has a gradient of nothing but rounding. So every
    gradient is taken for a sum of parts that are not much smaller than the largest gradient.
    """
    largest = max(float(gradient.abs().max()) for gradient in drawn.gradients.values())
    rows = drawn.sums.new_zeros(len(drawn.sums), sum(each.cut.count for each in slices))
    sizes = torch.zeros_like(rows)
    for each in slices:
        gradients = drawn.gradients.get(each.cut.name)
        if gradients is not None:
            rows[:, each.cut.place] = each.sums(gradients, vector)
            parts = each.sums(gradients.abs(), vector.abs())
            sizes[:, each.cut.place] = torch.where(
                parts > 0, parts.clamp(min=_SMALLEST * largest), 0.0
            )
    return Equations(rows.cpu(), sizes.cpu())


def in_blocks(parameters: Mapping[str, Tensor], most: int) -> dict[Place, list[Slices]]:
    """At most about `most` slices for each shape: several at a time where there are more."""
    return {place: _cut(found, most) for place, found in _by_place(parameters).items()}


def one_by_one(parameters: Mapping[str, Tensor], most: int) -> dict[Place, list[Slices]]:
    """Every slice for itself, for those shapes that have at most so many."""
    return {
        place: _cut(found, most)
        for place, found in _by_place(parameters).items()
        if sum(each.cut.size for each in found) <= most
    }


def grouped(vectors: Tensor, slices: Sequence[Slices], shape: Shape) -> list[Group]:
    """One group for all vectors that are added to the same parameters."""
    alike: dict[tuple[int, ...], list[Tensor]] = {}
    for vector in vectors:
        places = (vector[each.cut.place] for each in slices)
        touched = [i for i, place in enumerate(places) if bool((place.abs() > ZERO).any())]
        alike.setdefault(tuple(touched), []).append(vector / vector.abs().max())
    return [
        Group(len(same), tuple(slices[i].site(torch.stack(same)) for i in touched), shape=shape)
        for touched, same in alike.items()
    ]


def sparing(group: Group, site: Site) -> Group | None:
    """The sums of its vectors that leave one of its sites as it is; None if there are none."""
    others = [each for each in group.sites if each is not site]
    here, *there = (torch.tensor(e.coefficients, dtype=torch.float64) for e in (site, *others))
    _, singular, right = torch.linalg.svd(here.T, full_matrices=True)
    rank = int((singular > ZERO * singular[0]).sum())
    if rank == group.width or not others:
        return None
    sizes = [each.shape[1] for each in there]
    parts = simple(right[rank:] @ torch.cat(there, dim=1)).split(sizes, dim=1)
    sites = [
        dataclasses.replace(each, coefficients=tuple(map(tuple, part.tolist())))
        for each, part in zip(others, parts, strict=True)
    ]
    return Group(len(parts[0]), tuple(sites), shape=group.shape)


def _by_place(parameters: Mapping[str, Tensor]) -> dict[Place, list[Slices]]:
    """All slices that one vector may be added to; not yet numbered.

    Slices along different dimensions are kept apart: in a square weight, a vector added to rows and
    taken from columns would add nothing. A parameter of the vector's shape goes with all of them.
    """
    found: dict[Place, list[Slices]] = {}
    whole: list[tuple[Shape, Slices]] = []
    for name, parameter in parameters.items():
        shape = tuple(parameter.shape)
        long = [dim for dim, size in enumerate(shape) if size > 1]
        for dim in long or [0]:
            rest = tuple(shape[other] for other in long if other != dim)
            cut = CutDimension(name, dim, shape[dim] if shape else 1, 0, 0)
            place = Place(rest, dim - len(shape) if rest else 0)
            found.setdefault(place, []).append(Slices(cut, whole=False))
        if len(long) == 1:
            cut = CutDimension(name, long[0], 1, 0, 0)
            whole.append(((shape[long[0]],), Slices(cut, whole=True)))
    for place, slices in found.items():
        slices += [each for shape, each in whole if shape == place.shape]
    return found


def _cut(found: Sequence[Slices], most: int) -> list[Slices]:
    """The same, numbered; slices that lie side by side are taken together where there are many."""
    block = 1
    while sum(_count(each.cut.size, block) for each in found) > most and block < most:
        block *= 2
    numbered, start = [], 0
    for each in found:
        count = _count(each.cut.size, block)
        cut = dataclasses.replace(each.cut, start=start, count=count)
        numbered.append(Slices(cut, each.whole))
        start += count
    return numbered


def _count(size: int, block: int) -> int:
    return size // block if size % block == 0 else 1
