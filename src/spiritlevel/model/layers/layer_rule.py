"""What the library needs to know about a kind of layer, and about one use of such a layer."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ...math.contractions import Shape
from .layout import Layout
from .weight_matrix import Contracted, WeightMatrix


@dataclasses.dataclass(frozen=True)
class ContractionRequest:
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


class AbstractMatrixCall(AbstractCall):
    """One use of a weight that acts as a matrix."""

    @property
    @abc.abstractmethod
    def needs_input_gradient(self) -> bool:
        """Whether ρ must come from the gradient at the layer's input."""

    @abc.abstractmethod
    def contract(
        self, deltas: list[Tensor], factors: Tensor, weight: WeightMatrix
    ) -> list[Contracted]:
        """Take some factor columns; the parts follow each other over the samples."""


class AbstractRule(abc.ABC):
    """What is known about one kind of layer."""

    @abc.abstractmethod
    def begin(
        self, module: Any, a: Tensor, out: torch.Size, layout: Layout, wants: ContractionRequest
    ) -> Any:
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
