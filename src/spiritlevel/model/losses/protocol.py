"""What the rest of the library needs to know about a loss."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from ...math.positions import OutputCurvature, Positions


class Loss(Protocol):
    """One value per sample, and its Hessian in the outputs."""

    @property
    def name(self) -> str:
        """The name that settings and messages show."""
        ...

    def check(self, outputs: Tensor, targets: Tensor, *, where: str) -> None:
        """Raise SpiritlevelError if the shapes do not fit; `where` names the batch."""
        ...

    def invalid(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Which targets are not valid; stays on the device, so that nothing waits for it."""
        ...

    def refuse_invalid(self, outputs: Tensor, targets: Tensor, *, where: str) -> None:
        """Raise SpiritlevelError for the first invalid target."""
        ...

    def apply_mask(self, targets: Tensor, mask: Tensor, *, where: str) -> Tensor:
        """The targets, marked as not to be counted where the mask is 0."""
        ...

    def values(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss ℓ_n of each sample, shape (N,), not divided by its weight."""
        ...

    def weights(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The weight of each sample in the mean Σ ℓ_n / Σ weight_n, shape (N,)."""
        ...

    def positions(self, outputs: Tensor, targets: Tensor) -> Positions | None:
        """Which outputs interact in the loss; None if every output has its own loss."""
        ...

    def num_columns(self, outputs: Tensor, targets: Tensor) -> int:
        """The number of factor columns of `curvature`, without computing it."""
        ...

    def curvature(self, outputs: Tensor, targets: Tensor) -> OutputCurvature:
        """∇²ℓ_n in the outputs, flattened to (N, elements)."""
        ...

    def rounding(self, outputs: Tensor, targets: Tensor) -> Tensor | None:
        """The rounding of second derivatives and their size, float64, summed over some samples.

        None: no digits cancel in them.
        """
        ...


def total_weight(loss: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    """Σ weight_n, in at least float32: half precision ends at 65,504."""
    dtype = torch.promote_types(outputs.dtype, torch.float32)
    return loss.weights(outputs.detach(), targets).sum().to(dtype)


def rounding_and_size(outputs: Tensor, count: Tensor, size: Tensor) -> Tensor:
    """Of a loss whose network ends in probabilities: 1 − p has the rounding of the outputs."""
    rounding = torch.finfo(outputs.dtype).eps * count.double().sum()
    return torch.stack([rounding, size.detach().double().sum()])


def as_mask(mask: Tensor, shape: torch.Size) -> Tensor | None:
    """A mask of samples or of leading dimensions, expanded to `shape`; None if it does not fit."""
    if mask.shape != shape[: mask.dim()]:
        return None
    return (mask != 0).reshape(*mask.shape, *[1] * (len(shape) - mask.dim())).expand(shape)
