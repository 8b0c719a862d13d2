"""Flatness of a last linear layer z = W φ + b in closed form, and its margins.

The Hessian block of W is mean_n A_n ⊗ φ_n φ_nᵀ for any network below it, because z is linear in W.
φ is the layer's input; under global average pooling of a convolution it is the average input patch
(Taleghani et al., Theorem 1). The bias is left out: it adds mean Tr A to the trace.
All functions return one value per sample (their mean is the measure) unless stated otherwise.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .blocks import CPU_BLOCK, GPU_BLOCK, block_shape, matmul, slices, wide_type
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


@torch.no_grad()
def stream_margins(
    features: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, *, budget: int
) -> Tensor:
    """z_y − max_{j≠y} z_j for z = W φ + b, float64, shape (T,); `budget` in bytes.

    >>> phi, W = torch.tensor([[1.0]]), torch.tensor([[2.0], [5.0], [4.0]])
    >>> stream_margins(phi, W, None, torch.tensor([1]), budget=2**20).tolist()
    [1.0]
    """
    wide = wide_type(features, weight)
    tokens, classes = block_shape(
        len(features),
        len(weight),
        budget=budget,
        logit_bytes=(3 + (bias is not None)) * wide.itemsize,
        token_bytes=wide.itemsize * features.shape[1],
        class_bytes=wide.itemsize * features.shape[1],
        limit=GPU_BLOCK if features.is_cuda else CPU_BLOCK,
    )
    all_classes = torch.arange(len(weight), device=weight.device)
    parts = []
    for block in slices(len(features), tokens):
        phi, label = features[block], labels[block, None]
        labelled = torch.zeros(len(phi), dtype=wide, device=phi.device)  # z_y
        others = torch.full_like(labelled, -math.inf)  # the largest z_j with j ≠ y
        for chunk in slices(len(weight), classes):
            z = matmul(phi, weight[chunk].T, wide)
            z = z if bias is None else z + bias[chunk]
            is_label = all_classes[chunk] == label
            labelled += torch.where(is_label, z, torch.zeros_like(z)).sum(dim=1)
            others = torch.maximum(others, z.masked_fill_(is_label, -math.inf).amax(dim=1))
        parts.append(labelled.double() - others.double())
    return torch.cat(parts)
