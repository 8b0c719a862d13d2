"""Parameters that are multiplied by or added to a tensor, entry by entry."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor

from .layer_rule import AbstractLayerGradients, AbstractRule, ContractionRequest
from .layout import Layout


@dataclasses.dataclass(frozen=True)
class Broadcast:
    """What is known of such an operation, y = weight ∘ basis + bias."""

    # of weight and bias by these names, each with as many dimensions as the output, or fewer, which
    # are its last ones
    shapes: dict[str, torch.Size]

    def aligned(self, key: str, num_dims: int) -> list[int]:
        """The shape of weight or bias with a 1 for each dimension that it lacks."""
        shape = self.shapes[key]
        return [1] * (num_dims - len(shape)) + list(shape)


@dataclasses.dataclass
class BroadcastGradients(AbstractLayerGradients):
    """One use of such parameters."""

    operation: Broadcast
    layout: Layout
    basis: Tensor

    def gradients(self, delta: Tensor) -> dict[str, Tensor]:
        """Sums over the dimensions that the parameters are broadcast along."""
        return {
            key: self._reduced(key, delta * self.basis if key == "weight" else delta)
            for key in self.operation.shapes
        }

    def _reduced(self, key: str, x: Tensor) -> Tensor:
        aligned = self.operation.aligned(key, x.dim())
        del aligned[self.layout.dim]
        split = self.layout.split(x).sum(dim=1)  # (N, other dimensions…)
        over = [i + 1 for i, size in enumerate(aligned) if size == 1]
        summed = split.sum(dim=over, keepdim=True) if over else split
        return summed.reshape(len(summed), *self.operation.shapes[key])


class BroadcastRule(AbstractRule):
    """Gains, shifts, tokens that are added or repeated, and affine parts of normalizations.

    The input of a use is what the weight is multiplied by; a shift has none, and its input is 1.
    """

    def leading(self, module: Any, out: torch.Size) -> int:
        """The first dimensions, as far as no parameter has entries of its own along them."""
        sizes = [module.aligned(key, len(out)) for key in module.shapes]
        own = [any(size[dim] > 1 for size in sizes) for dim in range(len(out))]
        return own.index(True) if True in own else max(1, len(out) - 1)

    def prepare(
        self, module: Any, a: Tensor, out: torch.Size, layout: Layout, request: ContractionRequest
    ) -> BroadcastGradients:
        """Nothing needs to be worked out first."""
        return BroadcastGradients(module, layout, a)


def laid_along(values: Tensor, aligned: list[int], layout: Layout, shape: torch.Size) -> Tensor:
    """Values of each sample, laid along its rows and the parameter's dimensions of an output."""
    others = [size for i, size in enumerate(aligned) if i != layout.dim]
    assert values[0].numel() == math.prod(others)
    by_row = layout.repeated(values, shape).reshape(-1, *others)
    return by_row.movedim(0, layout.dim).expand(shape)
