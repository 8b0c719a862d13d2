"""What every kind of layer has in common: where its samples are, and what one use of it gives."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ...math import contractions
from ...math.contractions import Shape


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where the samples are in a layer's tensors: dimension `dim` holds them, once or repeated.

    (N·r, …) from a reshape is sample-major; (T, N, …) has dim = 1; (r·N, …) is not sample-major.
    The number of repeats is read off each tensor: it may differ from batch to batch.
    """

    dim: int = 0
    sample_major: bool = True
    num_samples: int = 0

    def repeats(self, shape: torch.Size) -> int:
        """How many entries a sample has along the sample dimension."""
        return shape[self.dim] // self.num_samples

    def split(self, x: Tensor) -> Tensor:
        """Shape (N, repeats, …rest)."""
        repeats = self.repeats(x.shape)
        x = x.movedim(self.dim, 0)
        if self.sample_major:
            return x.reshape(self.num_samples, repeats, *x.shape[1:])
        return x.reshape(repeats, self.num_samples, *x.shape[1:]).transpose(0, 1)


def candidate_layouts(
    shape: torch.Size, num_samples: int, other: torch.Size, other_samples: int, *, leading: int
) -> list[Layout]:
    """Layouts that explain the output shapes of a layer for two different numbers of samples.

    >>> candidate_layouts(torch.Size([6, 3]), 3, torch.Size([10, 3]), 5, leading=1)[0]
    Layout(dim=0, sample_major=True, num_samples=3)
    """
    grown = [dim for dim in range(len(shape)) if shape[dim : dim + 1] != other[dim : dim + 1]]
    if len(shape) != len(other) or len(grown) != 1 or grown[0] >= leading:
        return []
    dim, repeats = grown[0], shape[grown[0]] // num_samples
    if shape[dim] != repeats * num_samples or other[dim] != repeats * other_samples:
        return []
    layouts = [Layout(dim, True, num_samples), Layout(dim, False, num_samples)]
    return layouts if repeats > 1 else layouts[:1]


@dataclasses.dataclass(frozen=True)
class Wants:
    """What a sweep should contract, and in how many factor columns."""

    kappa: bool
    num_columns: int
    contract: bool = True  # False where only `gradients` will be called
    # what the features are divided by, by kind of κ, where they are; shape: (g, 1, in)
    inverses: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)


class AbstractCall(abc.ABC):
    """One use of a layer on one batch."""

    @abc.abstractmethod
    def gradients(self, delta: Tensor) -> dict[str, Tensor]:
        """Per-sample gradients by parameter name, each of shape (N, *parameter)."""


class AbstractRule(abc.ABC):
    """What is known about one kind of layer."""

    @abc.abstractmethod
    def begin(self, module: Any, a: Tensor, out: torch.Size, layout: Layout, wants: Wants) -> Any:
        """A Call for input `a` and an output of shape `out`."""

    @abc.abstractmethod
    def leading(self, module: Any, out: torch.Size) -> int:
        """How many leading dimensions of the output may hold the samples."""


class AbstractMatrixRule(AbstractRule):
    """A weight that acts as a matrix on patches."""

    @abc.abstractmethod
    def matrix(self, module: Any, weight: Tensor) -> Tensor:
        """View (…, *weight) as (…, groups, rows, columns)."""

    @abc.abstractmethod
    def neurons(self, module: Any) -> int:
        """Input neurons of one group; j owns the columns j, j + neurons, j + 2·neurons, ..."""

    @abc.abstractmethod
    def squared_inputs(self, module: Any, a: Tensor, out: torch.Size, layout: Layout) -> Tensor:
        """Σ ‖u_t‖² over the patches of each sample, float64, shape (N,)."""

    @abc.abstractmethod
    def shape(self, module: Any, a: Tensor, out: torch.Size, layout: Layout) -> Shape:
        """The sizes that decide which form is cheapest."""


@dataclasses.dataclass(frozen=True)
class Contracted:
    """Some factor columns of one layer; `neurons`, squared, gives ρ."""

    factor: Tensor  # what each column counts, shape: (N, B)
    trace: Tensor  # shape: (N, B)
    kappas: dict[str, Tensor]  # by kind, each of shape (N, B)
    neurons: Tensor | None  # shape: (N, B, neurons)


@dataclasses.dataclass(frozen=True)
class Relative:
    """What one kind of κ takes, ‖(W V)ᵀ G V⁻¹‖²: V is 1, or brings the features to one scale."""

    matrix: Tensor  # W V, shape: (g, out, in)
    gram: Tensor  # W V² Wᵀ, shape: (g, out, out)
    inverse: Tensor | None = None  # V⁻¹, shape: (g, 1, in); None for V = 1

    @classmethod
    def of(cls, matrix: Tensor, scale: Tensor | None = None) -> Relative:
        """Of a weight (g, out, in), and of V of shape (g, 1, in); a feature with V = 0 is out."""
        if scale is None:
            return cls(matrix, matrix @ matrix.mT)
        scaled = (matrix.double() * scale).to(matrix)
        inverse = torch.where(scale > 0, 1 / scale, torch.zeros_like(scale)).to(matrix)
        return cls(scaled, scaled @ scaled.mT, inverse)

    def of_gradient(self, G: Tensor) -> Tensor:
        """From a formed G of shape (N, B, g, out, in)."""
        G = G if self.inverse is None else G * self.inverse
        return contractions.gradient_kappa(G, self.matrix, self.gram)


@dataclasses.dataclass(frozen=True)
class Weight:
    """A layer's weight as a matrix, prepared once for all batches."""

    matrix: Tensor  # shape: (g, out, in)
    kappas: dict[str, Relative]  # those that are wanted
    neurons: int
    rho: bool  # whether ρ is wanted

    def contract(self, G: Tensor, factor: Tensor) -> Contracted:
        """All contractions of a formed G of shape (N, B, g, out, in)."""
        rho = contractions.gradient_neurons(G, self.matrix, self.neurons) if self.rho else None
        kappas = {kind: relative.of_gradient(G) for kind, relative in self.kappas.items()}
        return Contracted(factor, contractions.gradient_trace(G), kappas, rho)


class AbstractMatrixCall(AbstractCall):
    """One use of a weight that acts as a matrix."""

    @property
    @abc.abstractmethod
    def needs_input_gradient(self) -> bool:
        """Whether ρ must come from the gradient at the layer's input."""

    @abc.abstractmethod
    def contract(self, deltas: list[Tensor], factors: Tensor, weight: Weight) -> list[Contracted]:
        """Take some factor columns; the parts follow each other over the samples."""


def over_columns(
    function: Callable[[Tensor], tuple[Tensor, ...]], deltas: list[Tensor]
) -> tuple[Tensor, ...]:
    """A function of one column's gradient applied to several at once: (N, …) to (N, B, …)."""
    if len(deltas) == 1:
        return tuple(value.unsqueeze(1) for value in function(deltas[0]))
    values = torch.func.vmap(function, out_dims=1)(torch.stack(deltas))
    return values
