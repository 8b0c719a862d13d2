"""Moves: entries of tensors that are rescaled or reordered together.

Units are numbered 0 … width − 1 within a group. A site says which unit every entry along one
dimension of a tensor belongs to, so a flatten, a concatenation or a shuffle between two layers is
just another numbering. The names of moves are those on a measure's card, and those looked for in a
user's network.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .names import SHIFTS

NOBODY = -1  # the unit of an entry that belongs to none of the group
ROOT = "(model)"  # the path of the outermost module, in words

UP, DOWN, BOTH = 1, -1, 0  # factors above 1, below 1, or either from unit to unit
_FACTORS = (5.0, 25.0)
# Every layer multiplies again, so the usual factors would overflow in a deep network.
_FACTORS_OF = {"weight_scale": (1.5, 2.5)}
_MIX = 5.0  # a mixing matrix stretches some directions by up to this and shrinks others
_ONE_FACTOR = "layer_rescale"  # of the moves on whole groups, the one that treats all units alike
_BY_TENSOR = {"free_rescale", "norm_rescale", "unit_mix", "unit_turn"}  # found without modules
NO_DIM = -1  # of a tensor that a vector of its own shape is added to
_FOR_ZEROS = 0.1  # the size of what is added to parameters that are all zero
_SHOWN = 3  # names of one role in a description


class Role(enum.Enum):
    """What happens to a site when its units are multiplied by α."""

    TIMES = "multiplied by α"
    OFFSET = "the shift of a BatchNorm whose scale is divided by α: its running mean stays covered"
    OVER = "divided by α"
    PLUS = "gets the group's vector added, times a coefficient for each of its entries"
    MEAN = "a running mean, multiplied by α"
    VARIANCE = "a running variance v with ε, becomes α²(v + ε) − ε"
    ALONG = "stays; only reordered with the units"
    SHIFT = "added to something multiplied by a power of α: multiplied by the same power"


@dataclasses.dataclass(frozen=True)
class Site:
    """A dimension of a parameter or buffer, with the unit that each entry along it belongs to."""

    module: str
    tensor: str
    dim: int
    units: tuple[int, ...]
    role: Role
    groups: int = 1  # of a grouped convolution, whose weight holds one group's inputs along dim 1
    eps: float = 0.0
    power: float = 1.0  # of the factor
    coefficients: tuple[tuple[float, ...], ...] = ()  # of each vector, for every entry along dim

    @property
    def name(self) -> str:
        """The tensor's full name in the model."""
        return f"{self.module}.{self.tensor}" if self.module else self.tensor

    def of(self, model: nn.Module) -> Tensor:
        """The tensor of this site in a model."""
        owner, _, name = self.name.rpartition(".")  # 'out_proj.weight' lies one module deeper
        tensor: Tensor = getattr(model.get_submodule(owner), name)
        return tensor

    def rescale(self, model: nn.Module, factors: Tensor) -> None:
        """Apply one factor for each unit, in place."""
        if self.role is Role.ALONG:
            return
        tensor = self.of(model)
        units = torch.tensor(self.units)
        chosen = factors.cpu()[units.clamp(min=0)] ** self.power
        scale = torch.where(units == NOBODY, 1.0, chosen).to(tensor)
        if self.role is Role.OFFSET:
            tensor.add_(_covered_mean(model.get_submodule(self.module)) * (1 / scale - 1))
            return
        if self.groups > 1:
            shape = (self.groups, -1, *tensor.shape[1:])
            blocks, scale = tensor.view(shape), scale.view(self.groups, 1, -1)
            scale = scale.reshape(*scale.shape, *[1] * (tensor.dim() - 2))
        else:
            shape = (-1, *[1] * (tensor.dim() - self.dim - 1)) if tensor.dim() else ()
            blocks, scale = tensor, scale.view(shape)
        if self.role in (Role.TIMES, Role.MEAN, Role.SHIFT):
            blocks.mul_(scale)
        elif self.role is Role.OVER:
            blocks.div_(scale)
        else:
            blocks.add_(self.eps).mul_(scale.square()).sub_(self.eps)

    def mix(self, model: nn.Module, matrix: Tensor) -> None:
        """Replace units by sums of units, in place; what is divided undoes it."""
        tensor = self.of(model)
        if self.role is Role.OVER:
            matrix = torch.linalg.inv(matrix).T
        for where in table_of(torch.tensor(self.units), len(matrix)).T.to(tensor.device):
            units = tensor.index_select(self.dim, where).movedim(self.dim, 0)
            mixed = torch.tensordot(matrix.to(tensor), units, dims=1)
            tensor.index_copy_(self.dim, where, mixed.movedim(0, self.dim))

    def turn(self, model: nn.Module, angles: Tensor) -> None:
        """Turn the pairs of entries that make up each unit, in place."""
        tensor = self.of(model)
        table = table_of(torch.tensor(self.units), len(angles)).to(tensor.device)
        shape = (-1, *[1] * (tensor.dim() - 1))
        cos, sin = (f(angles).to(tensor).view(shape) for f in (torch.cos, torch.sin))
        for first, second in table.T.unflatten(0, (-1, 2)):
            a, b = (tensor.index_select(self.dim, i).movedim(self.dim, 0) for i in (first, second))
            tensor.index_copy_(self.dim, first, (cos * a - sin * b).movedim(0, self.dim))
            tensor.index_copy_(self.dim, second, (sin * a + cos * b).movedim(0, self.dim))

    def shift(self, model: nn.Module, vectors: Tensor) -> None:
        """Add each vector, times its coefficients, in place; it has all dimensions but dim."""
        tensor = self.of(model)
        coefficients = torch.tensor(self.coefficients, dtype=vectors.dtype)
        added = torch.tensordot(coefficients.T, vectors, dims=1)  # entries along dim come first
        if self.dim != NO_DIM:
            added = added.reshape(tensor.movedim(self.dim, 0).shape).movedim(0, self.dim)
        tensor.add_(added.reshape(tensor.shape).to(tensor))

    def single(self, k: int) -> Site:
        """The same place for one of the vectors."""
        return dataclasses.replace(self, coefficients=self.coefficients[k : k + 1])

    def reorder(self, model: nn.Module, order: Tensor) -> None:
        """Put unit `order[j]` where unit j was, in place."""
        tensor = self.of(model)
        where = reordered(torch.tensor(self.units), order).to(tensor.device)
        tensor.copy_(tensor.index_select(self.dim, where))


@dataclasses.dataclass(frozen=True)
class Group:
    """Units that move together: the sites that write them and the sites that read them."""

    width: int
    sites: tuple[Site, ...]
    blocks: tuple[int, ...] = ()  # units with the same number can be mixed with each other
    shape: tuple[int, ...] = ()  # of the vectors that are added

    def rescale(self, model: nn.Module, factors: Tensor) -> None:
        """Multiply the units in place, and divide what reads them."""
        for site in self.sites:
            site.rescale(model, factors)

    def reorder(self, model: nn.Module, order: Tensor) -> None:
        """Renumber the units in place, and in what reads them."""
        for site in self.sites:
            site.reorder(model, order)

    def mix(self, model: nn.Module, matrix: Tensor) -> None:
        """Mix the units in place, and undo it in what reads them."""
        for site in self.sites:
            site.mix(model, matrix)

    def turn(self, model: nn.Module, angles: Tensor) -> None:
        """Turn every unit in place, and in what reads it: the angle between both stays."""
        for site in self.sites:
            site.turn(model, angles)

    def shift(self, model: nn.Module, vectors: Tensor) -> None:
        """Add vectors in place, one for each unit, each of the group's `shape`."""
        for site in self.sites:
            site.shift(model, vectors)

    def singles(self) -> list[Group]:
        """The same vectors, each as a group of its own."""
        return [
            Group(1, tuple(site.single(k) for site in self.sites), shape=self.shape)
            for k in range(self.width)
        ]

    def modules(self, role: Role) -> list[str]:
        """Paths of the modules that play a role, each once."""
        return list(dict.fromkeys(site.module for site in self.sites if site.role is role))

    def tensors(self, role: Role) -> list[str]:
        """Full names of the tensors that play a role, each once."""
        return list(dict.fromkeys(site.name for site in self.sites if site.role is role))


@dataclasses.dataclass(frozen=True)
class Move:
    """A change of the parameters, ready to be applied with random factors or a random order."""

    name: str  # a key of MOVES
    groups: tuple[Group, ...]
    power: float = 0.0  # of its factor, by which the outputs are multiplied
    towards: tuple[int, ...] = (UP, DOWN, BOTH)  # where its factors may lie
    remainder: float = 0.0  # share of the outputs by which it may change them after all
    further: tuple[tuple[Group, ...], ...] = ()  # that hold too, but not together with the others

    @property
    def variants(self) -> list[Move]:
        """The moves of each set of groups that hold together."""
        sets = (self.groups, *self.further)
        return [dataclasses.replace(self, groups=each, further=()) for each in sets]

    @property
    def factors(self) -> tuple[float, float]:
        """The range that factors are drawn from."""
        return _FACTORS_OF.get(self.name, _FACTORS)

    def apply(self, model: nn.Module, generator: torch.Generator, towards: int = UP) -> nn.Module:
        """A moved deep copy; the model itself does not change. `towards` is UP, DOWN or BOTH."""
        moved = copy.deepcopy(model)
        self.change(moved, generator, towards)
        return moved

    def change(self, model: nn.Module, generator: torch.Generator, towards: int = UP) -> None:
        """Move a model in place."""
        with torch.no_grad():
            for group in self.groups:
                if self.name == "unit_permute":
                    group.reorder(model, random_order(group.width, generator))
                elif self.name == "unit_mix":
                    group.mix(model, random_mix(group.blocks, generator))
                elif self.name == "unit_turn":
                    group.turn(model, 2 * math.pi * _uniform(group.width, generator))
                elif self.name in SHIFTS:
                    group.shift(model, self._vectors(model, group, generator))
                else:
                    group.rescale(model, self._draw(group, generator, towards))

    def at(self, model: nn.Module, factor: float) -> nn.Module:
        """A deep copy in which every unit is rescaled by the same given factor."""
        moved = copy.deepcopy(model)
        with torch.no_grad():
            for group in self.groups:
                group.rescale(moved, torch.full((group.width,), factor, dtype=torch.float64))
        return moved

    def draw(self, generator: torch.Generator, towards: int = UP) -> float:
        """Draw one random factor for all units; below 1 if it is not UP."""
        low, high = self.factors
        factor = low + (high - low) * float(_uniform(1, generator))
        return factor if towards == UP else 1 / factor

    def describe(self) -> str:
        """The first group in plain words, and how many more there are."""
        text = _words(self.name, self.groups[0])
        if self.power:
            text += (
                f": the outputs are multiplied by {'α' if self.power == 1 else f'α^{self.power:g}'}"
            )
        more = sum(map(len, (self.groups, *self.further))) - 1
        return text + (f"; {more} more group{'s' * (more > 1)}" if more else "")

    def _draw(self, group: Group, generator: torch.Generator, towards: int) -> Tensor:
        low, high = self.factors
        count = 1 if self.name == _ONE_FACTOR else group.width
        factors = low + (high - low) * _uniform(count, generator)
        up = torch.full((count,), towards == UP)
        if towards == BOTH:
            up = _uniform(count, generator) < 0.5
        return torch.where(up, factors, 1 / factors).expand(group.width)

    def _vectors(self, model: nn.Module, group: Group, generator: torch.Generator) -> Tensor:
        """Random vectors, as many times larger than the parameters as factors are large."""
        low, high = self.factors
        factors = low + (high - low) * _uniform(group.width, generator)
        entries = torch.cat([site.of(model).flatten().cpu().double() for site in group.sites])
        size = float(entries.square().mean().sqrt()) or _FOR_ZEROS
        shape = (group.width, *group.shape)
        draws = torch.randn(shape, generator=generator, device=generator.device)
        return size * factors.view(-1, *[1] * len(group.shape)) * draws.cpu().double()


def _covered_mean(norm: nn.Module) -> Tensor:
    """What the running mean of a BatchNorm takes from its outputs, channel by channel."""
    scale, mean, variance, eps = (
        getattr(norm, name) for name in ("weight", "running_mean", "running_var", "eps")
    )
    covered: Tensor = scale * mean / (variance + eps).sqrt()
    return covered


def _uniform(count: int, generator: torch.Generator) -> Tensor:
    """Between 0 and 1, on the CPU."""
    draws = torch.rand(count, generator=generator, device=generator.device, dtype=torch.float64)
    return draws.cpu()


def random_mix(blocks: Sequence[int], generator: torch.Generator) -> Tensor:
    """A random invertible matrix that mixes units of equal number and leaves others apart."""
    numbers = torch.tensor(blocks)
    matrix = torch.zeros(len(numbers), len(numbers), dtype=torch.float64)
    for number in numbers.unique():
        place = (numbers == number).nonzero().flatten()
        left, right = (_orthogonal(len(place), generator) for _ in range(2))
        stretch = _MIX ** (2 * _uniform(len(place), generator) - 1)
        matrix[place[:, None], place] = left @ torch.diag(stretch) @ right
    return matrix


def _orthogonal(width: int, generator: torch.Generator) -> Tensor:
    draws = torch.randn(width, width, generator=generator, device=generator.device)
    orthogonal: Tensor = torch.linalg.qr(draws.cpu().double()).Q
    return orthogonal


def random_order(width: int, generator: torch.Generator) -> Tensor:
    """The numbers of the units in a random order, on the CPU."""
    return torch.randperm(width, generator=generator, device=generator.device).cpu()


def reordered(units: Tensor, order: Tensor) -> Tensor:
    """For each entry, the entry whose content it holds once the units are in the given order.

    >>> reordered(torch.tensor([0, 0, 1, 1, -1]), torch.tensor([1, 0])).tolist()
    [2, 3, 0, 1, 4]
    """
    table = table_of(units, len(order))
    where = torch.arange(len(units))
    where[table] = table[order]
    return where


def table_of(units: Tensor, width: int) -> Tensor:
    """For each unit the entries that belong to it, equally many for all."""
    owned = torch.nonzero(units != NOBODY).flatten()
    return owned[torch.argsort(units[owned], stable=True)].view(width, -1)


def _words(name: str, group: Group) -> str:
    first, readers = group.modules(Role.TIMES), group.modules(Role.OVER)
    if name in _BY_TENSOR or first == readers:  # the paths of modules alone are not enough
        first, readers = group.tensors(Role.TIMES), group.tensors(Role.OVER)
    if name == "unit_permute":
        along = [path for path in group.modules(Role.ALONG) if path not in first]
        carried = f" (with {_quoted(along)})" if along else ""
        return f"renumber the units of {_quoted(first)}{carried}, and in {_quoted(readers)} alike"
    if name == "unit_mix":
        count = len(set(group.blocks))
        each = f" in each of {count} blocks" if count > 1 else ""
        return f"mix the units of {_quoted(first)}{each}, and undo it in {_quoted(readers)}"
    if name == "unit_turn":
        return f"turn pairs of units of {_quoted(first)}, and of {_quoted(readers)} alike"
    if name in SHIFTS:
        where = "by a softmax over the outputs" if name == "logit_shift" else "further on"
        return f"add to {_quoted(group.tensors(Role.PLUS))} what is taken away {where}"
    by = "α" if group.width == 1 or name == _ONE_FACTOR else "an α for each unit"
    weights = "the weights of " if name == "weight_scale" else ""
    parts = [f"multiply {weights}{_quoted(first)} by {by}"] if first else []
    if shifts := {site.tensor for site in group.sites if site.role is Role.SHIFT}:
        means = " and running means" if "running_mean" in shifts else ""
        parts.append(f"biases{means} by α once for each layer up to them")
    if readers:
        parts.append(f"divide {_quoted(readers)} by {'it' if first else by}")
    if powers := [site for site in group.sites if name in _BY_TENSOR and site.power != 1]:
        parts.append(", ".join(f"{site.name!r} by α^{site.power:g}" for site in powers[:_SHOWN]))
    if offsets := group.tensors(Role.OFFSET):
        parts.append(f"let {_quoted(offsets)} make up for the running mean")
    if group.modules(Role.VARIANCE):
        following = _quoted(group.modules(Role.VARIANCE))
        parts.append(f"let the running statistics of {following} follow")
    return ", ".join(parts)


def _quoted(names: list[str]) -> str:
    shown = [repr(name or ROOT) for name in names[:_SHOWN]]
    more = len(names) - _SHOWN
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")
