"""Squared error and sigmoid cross-entropy: every output has its own loss."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ...errors import SpiritlevelError
from ...math.curvature import DiagonalCurvature
from .protocol import as_mask


def _check_same_shape(name: str, outputs: Tensor, targets: Tensor, where: str) -> None:
    if outputs.shape != targets.shape:
        raise SpiritlevelError(
            f"The loss {name!r} needs targets of the outputs' shape {tuple(outputs.shape)}. "
            f"Got {tuple(targets.shape)} in {where}. Reshape one of them, for example y[:, None]."
        )


def _apply_mask(name: str, targets: Tensor, mask: Tensor, where: str) -> Tensor:
    """The targets with NaN where the mask is 0; NaN in unmasked targets is refused as invalid."""
    shown = as_mask(mask, targets.shape)
    if shown is None:
        raise SpiritlevelError(
            f"A mask of the loss {name!r} needs the targets' shape {tuple(targets.shape)} or its "
            f"leading dimensions. Got {tuple(mask.shape)} in {where}. Reshape the mask that "
            "forward returns."
        )
    if not targets.is_floating_point():
        targets = targets.to(torch.get_default_dtype())
    return targets.masked_fill(~shown, math.nan)


def _shown(targets: Tensor) -> Tensor:
    """1 for targets that count, shape (N, elements)."""
    return (~torch.isnan(targets)).to(targets.dtype).reshape(len(targets), -1)


def _sum_shown(elements: Tensor, targets: Tensor) -> Tensor:
    """The sum over a sample of the losses of its elements that count."""
    flat = elements.reshape(len(elements), -1)
    if not targets.is_floating_point():
        return flat.sum(dim=1)
    return torch.where(_shown(targets) > 0, flat, torch.zeros_like(flat)).sum(dim=1)


def _count_shown(outputs: Tensor, targets: Tensor) -> Tensor:
    """How many elements of a sample count."""
    if not targets.is_floating_point():
        return outputs.new_full((len(outputs),), math.prod(outputs.shape[1:]))
    return _shown(targets).to(outputs.dtype).sum(dim=1)


def _diagonal(elements: Tensor, targets: Tensor) -> DiagonalCurvature:
    """Second derivatives of the elements that count."""
    flat = elements.reshape(len(elements), -1)
    if targets.is_floating_point():
        flat = torch.where(_shown(targets) > 0, flat, torch.zeros_like(flat))
    return DiagonalCurvature(flat)


class MeanSquaredError:
    """Squared error averaged over all elements, as `torch.nn.MSELoss` does."""

    name = "mse"

    def check(self, outputs: Tensor, targets: Tensor, *, where: str) -> None:
        """Refuse targets whose shape is not the outputs' shape."""
        _check_same_shape(self.name, outputs, targets, where)

    def invalid(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Targets that are not finite."""
        return ~torch.isfinite(targets)

    def refuse_invalid(self, outputs: Tensor, targets: Tensor, *, where: str) -> None:
        """Raise SpiritlevelError: some target is not finite."""
        raise SpiritlevelError(
            f"The targets of the loss {self.name!r} must be finite. Got NaN or infinity in "
            f"{where}. Remove or repair those samples, or return a mask from forward."
        )

    def apply_mask(self, targets: Tensor, mask: Tensor, *, where: str) -> Tensor:
        """The targets with NaN where the mask is 0."""
        return _apply_mask(self.name, targets, mask, where)

    def values(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of each sample, shape (N,)."""
        return _sum_shown((outputs - targets.nan_to_num()).square(), targets)

    def weights(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """How many elements of each sample count: torch averages over elements."""
        return _count_shown(outputs, targets)

    def positions(self, outputs: Tensor, targets: Tensor) -> None:
        """None: every output has its own loss, so any grouping is valid."""

    def num_columns(self, outputs: Tensor, targets: Tensor) -> int:
        """One per output."""
        return math.prod(outputs.shape[1:])

    def curvature(self, outputs: Tensor, targets: Tensor) -> DiagonalCurvature:
        """Twice the identity matrix."""
        return _diagonal(torch.full_like(outputs, 2.0), targets)


class BinaryCrossEntropy:
    """Sigmoid cross-entropy on logits, averaged over all elements, as in torch."""

    name = "bce"

    def __init__(self, *, weight: Tensor | None = None, pos_weight: Tensor | None = None) -> None:
        """The arguments of `torch.nn.BCEWithLogitsLoss`, with the same meaning."""
        self.weight = weight
        self.pos_weight = pos_weight

    def check(self, outputs: Tensor, targets: Tensor, *, where: str) -> None:
        """Refuse targets whose shape is not the outputs' shape."""
        _check_same_shape(self.name, outputs, targets, where)

    def invalid(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Targets outside [0, 1]."""
        return ~((targets >= 0) & (targets <= 1))

    def refuse_invalid(self, outputs: Tensor, targets: Tensor, *, where: str) -> None:
        """Raise SpiritlevelError with the range of the targets."""
        numbers = targets[~torch.isnan(targets)]  # what a mask hides is NaN here as well
        got = "NaN"
        if len(numbers) and bool(self.invalid(outputs, numbers).any()):
            got = f"values from {float(numbers.min()):g} to {float(numbers.max()):g}"
        raise SpiritlevelError(
            "The targets of the loss 'bce' must lie in [0, 1]. "
            f"Got {got} in {where}. Convert labels to 0 and 1."
        )

    def apply_mask(self, targets: Tensor, mask: Tensor, *, where: str) -> Tensor:
        """The targets with NaN where the mask is 0."""
        return _apply_mask(self.name, targets, mask, where)

    def values(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of each sample, shape (N,)."""
        elements = F.binary_cross_entropy_with_logits(
            outputs,
            targets.nan_to_num().to(outputs.dtype),
            weight=None if self.weight is None else self.weight.to(outputs),
            pos_weight=None if self.pos_weight is None else self.pos_weight.to(outputs),
            reduction="none",
        )
        return _sum_shown(elements, targets)

    def weights(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """How many elements of each sample count: torch averages over elements."""
        return _count_shown(outputs, targets)

    def positions(self, outputs: Tensor, targets: Tensor) -> None:
        """None: every output has its own loss, so any grouping is valid."""

    def num_columns(self, outputs: Tensor, targets: Tensor) -> int:
        """One per output."""
        return math.prod(outputs.shape[1:])

    def curvature(self, outputs: Tensor, targets: Tensor) -> DiagonalCurvature:
        """σ(z)σ(−z) on the diagonal; the product of two sigmoids does not cancel."""
        diagonal = outputs.sigmoid() * (-outputs).sigmoid()
        if self.pos_weight is not None:
            y = targets.nan_to_num().to(outputs.dtype)
            diagonal = diagonal * (self.pos_weight.to(outputs) * y + (1 - y))
        if self.weight is not None:
            diagonal = diagonal * self.weight.to(outputs)
        return _diagonal(diagonal, targets)
