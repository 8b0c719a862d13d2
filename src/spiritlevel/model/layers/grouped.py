"""Products with one matrix for each group, as of experts, and products from the left.

Y_g = X_g W_g has the samples among the rows of X, and Y_g = W_g X_g among its columns. Without
groups there is one matrix and no dimension for it.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ...math.contractions import Shape
from .layout import Layout
from .patches import PatchRule


class GroupedRule(PatchRule):
    """Y_g = X_g W_gᵀ with weights kept as (groups, out, in)."""

    left = False  # whether the weight is the left factor, and the features come before the samples

    def leading(self, module: Any, out: torch.Size) -> int:
        """The dimensions before the features, or all of them."""
        return len(out) if self.left else len(out) - 1

    def first_leading(self, module: Any, out: torch.Size) -> int:
        """The last of these: those before hold groups and features."""
        return self.leading(module, out) - 1

    def _split(self, x: Tensor, layout: Layout) -> Tensor:
        """In shape (N, g, T, features)."""
        split = layout.split(x)  # (N, T, groups, features) or (N, T, features)
        return split.transpose(1, 2) if split.dim() == 4 else split.unsqueeze(1)

    def patches(self, module: Any, a: Tensor, out: torch.Size, layout: Layout) -> Tensor:
        """The input at every position, for every group."""
        return self._split(a, layout)

    def windows(self, module: Any, a: Tensor, out: torch.Size, layout: Layout) -> Tensor | None:
        """None: there is nothing to unfold."""
        return None

    def squared_inputs(self, module: Any, a: Tensor, out: torch.Size, layout: Layout) -> Tensor:
        """The squared input, summed over groups, positions and features."""
        return layout.split(a).double().square().flatten(1).sum(dim=1)

    def signal(self, module: Any, delta: Tensor, layout: Layout) -> Tensor:
        """The gradient δ at the output, in shape (N, g, out, T)."""
        return self._split(delta, layout).mT

    def matrix(self, module: Any, weight: Tensor) -> Tensor:
        """The weight with a dimension for the groups, and rows before columns."""
        rows = weight if self.rows_first else weight.mT
        return rows if module.weight.dim() == 3 else rows.unsqueeze(-3)

    def from_matrix(self, module: Any, G: Tensor) -> Tensor:
        """The inverse of `matrix`."""
        G = G if self.rows_first else G.mT
        return G if module.weight.dim() == 3 else G.squeeze(1)

    def neurons(self, module: Any) -> int:
        """One per input feature of a group."""
        return module.in_features

    def per_neuron(self, module: Any, x: Tensor, layout: Layout) -> Tensor:
        """Sum over the positions of each group."""
        return self._split(x, layout).sum(dim=2).flatten(1)

    def shape(self, module: Any, a: Tensor, out: torch.Size, layout: Layout) -> Shape:
        """The sizes of one group's matrix; its positions are the rows of a sample."""
        groups = out[0] if len(out) == 3 else 1
        rows = out[-2] if self.left else out[-1]
        positions = math.prod(out) // (groups * rows * layout.num_samples)
        return Shape(groups, rows, module.in_features, positions)


class TransposedGroupedRule(GroupedRule):
    """Y_g = X_g W_g with weights kept as (groups, in, out)."""

    rows_first = False


class LeftRule(GroupedRule):
    """Y_g = W_g X_g with weights kept as (groups, out, in), or Y = W X."""

    left = True


class TransposedLeftRule(LeftRule):
    """Y_g = W_gᵀ X_g with weights kept as (groups, in, out), or Y = Wᵀ X."""

    rows_first = False
