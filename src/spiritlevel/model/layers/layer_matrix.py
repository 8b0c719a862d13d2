"""A layer's weight as a matrix, and what per-sample gradients contract to with it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor

from ...math import contractions


@dataclasses.dataclass(frozen=True)
class Contracted:
    """Trace and κ of some factor columns of one layer; `neurons`, squared, gives ρ."""

    factor: Tensor  # the weight of each column, shape: (N, B)
    trace: Tensor  # shape: (N, B)
    kappas: dict[str, Tensor]  # by kind, each of shape (N, B)
    neurons: Tensor | None  # shape: (N, B, neurons)


@dataclasses.dataclass(frozen=True)
class KappaWeight:
    """What one kind of κ, ‖(W V)ᵀ G V⁻¹‖², needs: V is 1, or brings the features to one scale."""

    matrix: Tensor  # W V, shape: (g, out, in)
    gram: Tensor  # W V² Wᵀ, shape: (g, out, out)
    inverse: Tensor | None = None  # V⁻¹, shape: (g, 1, in); None for V = 1

    @classmethod
    def of(cls, matrix: Tensor, scale: Tensor | None = None) -> KappaWeight:
        """From W of shape (g, out, in) and V of shape (g, 1, in); V = 0 leaves a feature out."""
        if scale is None:
            return cls(matrix, matrix @ matrix.mT)
        scaled = (matrix.double() * scale).to(matrix)
        inverse = torch.where(scale > 0, 1 / scale, torch.zeros_like(scale)).to(matrix)
        return cls(scaled, scaled @ scaled.mT, inverse)

    def of_gradient(self, G: Tensor) -> Tensor:
        """κ of a per-sample gradient G of shape (N, B, g, out, in)."""
        G = G if self.inverse is None else G * self.inverse
        return contractions.gradient_kappa(G, self.matrix, self.gram)


@dataclasses.dataclass(frozen=True)
class LayerMatrix:
    """A layer's weight as a matrix, prepared once for all batches."""

    matrix: Tensor  # shape: (g, out, in)
    kappas: dict[str, KappaWeight]  # the kinds to compute
    neurons: int
    rho: bool  # whether to compute ρ

    def contract(self, G: Tensor, factor: Tensor) -> Contracted:
        """All contractions of a per-sample gradient G of shape (N, B, g, out, in)."""
        rho = contractions.gradient_neurons(G, self.matrix, self.neurons) if self.rho else None
        kappas = {kind: relative.of_gradient(G) for kind, relative in self.kappas.items()}
        return Contracted(factor, contractions.gradient_trace(G), kappas, rho)


def over_columns(
    function: Callable[[Tensor], tuple[Tensor, ...]], deltas: list[Tensor]
) -> tuple[Tensor, ...]:
    """Apply a function of one column's gradient to B of them: results (N, …) become (N, B, …)."""
    if len(deltas) == 1:
        return tuple(value.unsqueeze(1) for value in function(deltas[0]))
    values = torch.func.vmap(function, out_dims=1)(torch.stack(deltas))
    return values
