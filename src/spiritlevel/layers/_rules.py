"""What every kind of layer has in common: where its samples are, and what one use of it gives."""

from __future__ import annotations

import abc
import dataclasses
from typing import Any

import torch
from torch import Tensor

from ..math import contractions
from ..math.contractions import Shape


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where the samples are in a layer's tensors: dimension `dim` holds samples × `repeats`.

    (N·r, …) from a reshape is sample-major; (T, N, …) has dim = 1; (r·N, …) is not sample-major.
    """

    dim: int = 0
    repeats: int = 1
    sample_major: bool = True

    def split(self, x: Tensor) -> Tensor:
        """Shape (N, repeats, …rest)."""
        x = x.movedim(self.dim, 0)
        num_samples = x.shape[0] // self.repeats
        if self.sample_major:
            return x.reshape(num_samples, self.repeats, *x.shape[1:])
        return x.reshape(self.repeats, num_samples, *x.shape[1:]).transpose(0, 1)


def candidate_layouts(shape: torch.Size, num_samples: int, *, leading: int) -> list[Layout]:
    """Layouts that the first `leading` dimensions of a layer's output admit, likeliest first."""
    found = []
    for dim in range(leading):
        if shape[dim] % num_samples == 0:
            repeats = shape[dim] // num_samples
            found.append(Layout(dim, repeats))
            if repeats > 1:
                found.append(Layout(dim, repeats, sample_major=False))
    return sorted(found, key=lambda layout: layout.repeats > 1)


@dataclasses.dataclass(frozen=True)
class Wants:
    """What a sweep should contract, and in how many factor columns."""

    kappa: bool
    num_columns: int
    contract: bool = True  # False where only `gradients` will be called


class AbstractCall(abc.ABC):
    """One use of a layer on one batch."""

    @abc.abstractmethod
    def gradients(self, delta: Tensor) -> dict[str, Tensor]:
        """Per-sample gradients by parameter name, each of shape (N, *parameter)."""


class AbstractRule(abc.ABC):
    """What is known about one kind of layer."""

    acts_as_matrix: bool

    @abc.abstractmethod
    def begin(self, module: Any, a: Tensor, out: torch.Size, layout: Layout, wants: Wants) -> Any:
        """A Call for input `a` and an output of shape `out`."""

    @abc.abstractmethod
    def leading(self, module: Any, out: torch.Size) -> int:
        """How many leading dimensions of the output may hold the samples."""


class AbstractMatrixRule(AbstractRule):
    """A weight that acts as a matrix on patches."""

    acts_as_matrix = True

    @abc.abstractmethod
    def matrix(self, module: Any, weight: Tensor) -> Tensor:
        """View (…, *weight) as (…, groups, rows, columns)."""

    @abc.abstractmethod
    def neurons(self, module: Any) -> int:
        """Input neurons of one group; j owns the columns j, j + neurons, j + 2·neurons, ..."""

    @abc.abstractmethod
    def shape(self, module: Any, a: Tensor, out: torch.Size, layout: Layout) -> Shape:
        """The sizes that decide which form is cheapest."""


@dataclasses.dataclass(frozen=True)
class Contracted:
    """Some factor columns of one layer; `neurons`, squared, gives ρ."""

    factor: Tensor  # what each column counts, shape: (N, B)
    trace: Tensor  # shape: (N, B)
    kappa: Tensor | None  # shape: (N, B)
    neurons: Tensor | None  # shape: (N, B, neurons)


@dataclasses.dataclass(frozen=True)
class Weight:
    """A layer's weight as a matrix, prepared once for all batches."""

    matrix: Tensor  # shape: (g, out, in)
    gram: Tensor | None  # W Wᵀ where κ is wanted
    neurons: int
    rho: bool  # whether ρ is wanted

    def contract(self, G: Tensor, factor: Tensor) -> Contracted:
        """All contractions of a formed G of shape (N, B, g, out, in)."""
        rho = contractions.gradient_neurons(G, self.matrix, self.neurons) if self.rho else None
        kappa = None
        if self.gram is not None:
            kappa = contractions.gradient_kappa(G, self.matrix, self.gram)
        return Contracted(factor, contractions.gradient_trace(G), kappa, rho)


class AbstractMatrixCall(AbstractCall):
    """One use of a weight that acts as a matrix; columns may be held back for a while."""

    @property
    @abc.abstractmethod
    def needs_input_gradient(self) -> bool:
        """Whether ρ must come from the gradient at the layer's input."""

    @abc.abstractmethod
    def contract(self, delta: Tensor, factor: Tensor, weight: Weight) -> list[Contracted]:
        """Take one factor column; give what is ready."""

    @abc.abstractmethod
    def flush(self, weight: Weight) -> list[Contracted]:
        """Give the columns that were held back."""
