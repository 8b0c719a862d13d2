"""Flatness of a last linear layer z = W φ + b in closed form.

The Hessian block of W is mean_n A_n ⊗ φ_n φ_nᵀ for any network below it, because z is linear in W.
φ is the layer's input; under global average pooling of a convolution it is the average input patch
(Taleghani et al., Theorem 1). The bias is left out: it adds mean Tr A to the trace.
All functions return one value per sample (their mean is the measure) unless stated otherwise.
"""

from __future__ import annotations

from torch import Tensor

from .curvature import RowCurvature


def head_trace(curvature: RowCurvature, features: Tensor) -> Tensor:
    """Tr A_n · ‖φ_n‖², shape (N,).

    >>> import torch
    >>> from spiritlevel.math.curvature import SoftmaxCurvature
    >>> even = SoftmaxCurvature(torch.zeros(1, 2))       # p = (½, ½), so the Gini term is ½
    >>> head_trace(even, torch.tensor([[3.0, 4.0]]))     # ½ · 25
    tensor([12.5000])
    """
    return curvature.trace() * features.square().sum(dim=1)


def head_kappa(curvature: RowCurvature, features: Tensor, weight: Tensor) -> Tensor:
    """Σ_ij ⟨w_i, w_j⟩ A_ij · ‖φ_n‖², shape (N,)."""
    return curvature.quadratic(weight) * features.square().sum(dim=1)


def head_product(
    curvature: RowCurvature, features: Tensor, weights: Tensor, direction: Tensor
) -> Tensor:
    """Σ_n weight_n A_n (V φ_n) φ_nᵀ for V of shape (C, d): one pair of matrix products."""
    signal = curvature.apply(features @ direction.T)
    return (signal * weights[:, None]).T @ features


def head_trace_squared_pairs(
    left: RowCurvature, left_features: Tensor, right: RowCurvature, right_features: Tensor
) -> Tensor:
    """Σ_{n,m} (φ_n·φ_m)² Tr(A_n A_m), one scalar; over all pairs and divided by N² it is Tr H²."""
    products = left.pairs(right)  # type: ignore[arg-type]
    return ((left_features @ right_features.T).square() * products).sum()
