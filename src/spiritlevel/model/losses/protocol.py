"""What the rest of the library needs to know about a loss."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from ...math.positions import OutputCurvature, Positions


class Loss(Protocol):
    """One value a sample, and its Hessian in the outputs."""

    @property
    def name(self) -> str:
        """For settings and messages."""
        ...

    def check(self, outputs: Tensor, targets: Tensor, *, where: str) -> None:
        """Raise SpiritlevelError if the shapes do not fit; `where` names the batch."""
        ...

    def invalid(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Which targets lie outside the range; left on the device, nobody waits for it."""
        ...

    def explain(self, outputs: Tensor, targets: Tensor, *, where: str) -> None:
        """Raise SpiritlevelError for the first invalid target."""
        ...

    def hidden(self, targets: Tensor, mask: Tensor, *, where: str) -> Tensor:
        """The targets with those outside a mask marked as not to be counted."""
        ...

    def values(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """ℓ_n, shape (N,)."""
        ...

    def weights(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """What ℓ_n is averaged by, shape (N,)."""
        ...

    def positions(self, outputs: Tensor, targets: Tensor) -> Positions | None:
        """Which outputs act on each other; None where every output stands alone."""
        ...

    def num_columns(self, outputs: Tensor, targets: Tensor) -> int:
        """Factor columns of a sample's curvature, without computing it."""
        ...

    def curvature(self, outputs: Tensor, targets: Tensor) -> OutputCurvature:
        """∇²ℓ_n in the outputs, flattened to (N, elements)."""
        ...


def as_mask(mask: Tensor, shape: torch.Size) -> Tensor | None:
    """A mask of whole samples or of leading dimensions, spread over `shape`; None if it cannot."""
    if mask.shape != shape[: mask.dim()]:
        return None
    return (mask != 0).reshape(*mask.shape, *[1] * (len(shape) - mask.dim())).expand(shape)
