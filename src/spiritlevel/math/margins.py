"""The margin of a softmax head over its vocabulary, without forming the outputs."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .blocks import CPU_BLOCK, GPU_BLOCK, block_shape, matmul, slices, wide_type


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
