"""What every kind of layer has in common: where its samples are, and what one use of it gives."""

from __future__ import annotations

import abc
import dataclasses
from typing import Any

import torch
from torch import Tensor, nn

from ..math import contractions
from ..math.contractions import Form, Shape


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
    rho: bool
    num_columns: int
    form: Form | None = None  # None: the cheapest


class AbstractCall(abc.ABC):
    """One use of a layer on one batch."""

    @abc.abstractmethod
    def gradients(self, delta: Tensor) -> dict[str, Tensor]:
        """Per-sample gradients by parameter name, each of shape (N, *parameter)."""


class AbstractRule(abc.ABC):
    """What is known about one kind of layer."""

    acts_as_matrix: bool

    @abc.abstractmethod
    def begin(
        self, module: nn.Module, a: Tensor, out: torch.Size, layout: Layout, wants: Wants
    ) -> Any:
        """A Call for input `a` and an output of shape `out`."""

    @abc.abstractmethod
    def leading(self, module: nn.Module, out: torch.Size) -> int:
        """How many leading dimensions of the output may hold the samples."""


class AbstractMatrixRule(AbstractRule):
    """A weight that acts as a matrix on patches."""

    acts_as_matrix = True

    @abc.abstractmethod
    def matrix(self, module: nn.Module, weight: Tensor) -> Tensor:
        """View (…, *weight) as (…, groups, rows, columns)."""

    @abc.abstractmethod
    def neurons(self, module: nn.Module) -> int:
        """Input neurons of one group; each owns columns/neurons adjacent columns."""

    @abc.abstractmethod
    def shape(self, module: nn.Module, a: Tensor, out: torch.Size, layout: Layout) -> Shape:
        """The sizes that decide which form is cheapest."""


@dataclasses.dataclass(frozen=True)
class Contracted:
    """One factor column of one layer: values a sample; `neurons` squared and summed give ρ."""

    trace: Tensor
    kappa: Tensor | None
    neurons: Tensor | None


def contract_gradient(
    G: Tensor, weight: Tensor, gram: Tensor | None, neurons: int, *, rho: bool
) -> Contracted:
    """All contractions of a formed G of shape (N, g, out, in)."""
    return Contracted(
        contractions.squared_norm(G),
        None if gram is None else contractions.gradient_kappa(G, weight, gram),
        contractions.gradient_neurons(G, weight, neurons) if rho else None,
    )
