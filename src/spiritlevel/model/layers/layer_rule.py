"""What the library needs to know about a kind of layer, and about one use of such a layer."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ...math.contractions import Shape
from .layer_matrix import Contracted, LayerMatrix
from .layout import Layout


@dataclasses.dataclass(frozen=True)
class ContractionRequest:
    """What a sweep contracts, and over how many factor columns."""

    kappa: bool
    num_columns: int
    contract: bool = True  # False where only `gradients` will be called
    direct: bool = False  # whether a matrix must form its gradients, whatever is cheapest
    # V⁻¹ by kind of κ, for the kinds with scaled features; shape: (g, 1, in)
    inverses: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)


class AbstractLayerGradients(abc.ABC):
    """The per-sample gradients of one use of a layer on one batch."""

    @abc.abstractmethod
    def gradients(self, delta: Tensor) -> dict[str, Tensor]:
        """Per-sample gradients by parameter name, each of shape (N, *parameter)."""


class AbstractMatrixGradients(AbstractLayerGradients):
    """The same for a layer whose weight acts as a matrix, with its contractions."""

    @property
    @abc.abstractmethod
    def needs_input_gradient(self) -> bool:
        """Whether ρ has to be computed from the gradient at the layer's input."""

    @abc.abstractmethod
    def contract(
        self, deltas: list[Tensor], factors: Tensor, weight: LayerMatrix
    ) -> list[Contracted]:
        """Contract some factor columns; each part of the result covers the next samples."""


class AbstractRule(abc.ABC):
    """How one kind of layer is handled."""

    @abc.abstractmethod
    def prepare(
        self, module: Any, a: Tensor, out: torch.Size, layout: Layout, request: ContractionRequest
    ) -> Any:
        """The gradients of a use with input `a` and an output of shape `out`."""

    @abc.abstractmethod
    def leading(self, module: Any, out: torch.Size) -> int:
        """How many leading dimensions of the output may hold the samples."""

    def first_leading(self, module: Any, out: torch.Size) -> int:
        """The first of these that may."""
        return 0


class AbstractMatrixRule(AbstractRule):
    """A kind of layer whose weight acts as a matrix on patches."""

    rows_first = True  # whether the first dimension of the weight holds the rows of the matrix

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
