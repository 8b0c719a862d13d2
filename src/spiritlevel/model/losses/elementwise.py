"""Squared error and sigmoid cross-entropy: every output has its own loss."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...ground.errors import SpiritlevelError
from ...math.curvature import DiagonalCurvature
from ...math.log_loss import minus_log_larger
from .elements import (
    check_constant,
    check_same_shape,
    count_shown,
    diagonal,
    mask_targets,
    refuse_nonfinite_targets,
    sum_shown,
)


class MeanSquaredError:
    """Squared error averaged over all elements, as `torch.nn.MSELoss` does."""

    name = "mse"

    def check(self, outputs: Tensor, targets: Tensor, *, where: str) -> None:
        """Refuse targets whose shape is not the outputs' shape."""
        check_same_shape(self.name, outputs, targets, where)

    def invalid(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Targets that are not finite."""
        return ~torch.isfinite(targets)

    def refuse_invalid(self, outputs: Tensor, targets: Tensor, *, where: str) -> None:
        """Raise SpiritlevelError: some target is not finite."""
        refuse_nonfinite_targets(self.name, where)

    def apply_mask(self, targets: Tensor, mask: Tensor, *, where: str) -> Tensor:
        """The targets with NaN where the mask is 0."""
        return mask_targets(self.name, targets, mask, where)

    def values(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of each sample, shape (N,)."""
        return sum_shown((outputs - targets.nan_to_num()).square(), targets)

    def weights(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """How many elements of each sample count: torch averages over elements."""
        return count_shown(outputs, targets)

    def positions(self, outputs: Tensor, targets: Tensor) -> None:
        """None: every output has its own loss, so any grouping is valid."""

    def num_columns(self, outputs: Tensor, targets: Tensor) -> int:
        """One per output."""
        return math.prod(outputs.shape[1:])

    def curvature(self, outputs: Tensor, targets: Tensor) -> DiagonalCurvature:
        """Twice the identity matrix."""
        return diagonal(torch.full_like(outputs, 2.0), targets)

    def rounding(self, outputs: Tensor, targets: Tensor) -> None:
        """None: no digits cancel."""


class BinaryCrossEntropy:
    """Sigmoid cross-entropy on logits, averaged over all elements, as in torch."""

    name = "bce"

    def __init__(self, *, weight: Tensor | None = None, pos_weight: Tensor | None = None) -> None:
        """The arguments of `torch.nn.BCEWithLogitsLoss`, with the same meaning."""
        self.weight = None if weight is None else weight.detach()
        self.pos_weight = None if pos_weight is None else pos_weight.detach()

    def check(self, outputs: Tensor, targets: Tensor, *, where: str) -> None:
        """Refuse targets of another shape than the outputs, and weights by sample."""
        check_same_shape(self.name, outputs, targets, where)
        check_constant(self.name, "weight", self.weight, outputs, where)
        check_constant(self.name, "pos_weight", self.pos_weight, outputs, where)

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
        return mask_targets(self.name, targets, mask, where)

    def values(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of each sample, shape (N,)."""
        y = targets.nan_to_num().to(outputs.dtype)
        return sum_shown(self.element_values(outputs, y), targets)

    def element_values(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The loss of each element, hidden or not; `y` has the outputs' type."""
        is_positive = outputs.detach() >= 0
        # log(1 + exp(±z)) is max(±z, 0) + log(1 + exp(−|z|)), and the first of them is linear
        values, linear = minus_log_larger(outputs), is_positive.to(y) - y
        if self.pos_weight is not None:
            values = values * self._scale(y)
            linear = torch.where(is_positive, linear, linear * self.pos_weight.to(outputs))
        values = values + outputs * linear
        return values if self.weight is None else values * self.weight.to(outputs)

    def _scale(self, y: Tensor) -> Tensor | float:
        """What `pos_weight` multiplies the curvature of each element by."""
        return 1.0 if self.pos_weight is None else 1 - y + self.pos_weight.to(y) * y

    def weights(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """How many elements of each sample count: torch averages over elements."""
        return count_shown(outputs, targets)

    def positions(self, outputs: Tensor, targets: Tensor) -> None:
        """None: every output has its own loss, so any grouping is valid."""

    def num_columns(self, outputs: Tensor, targets: Tensor) -> int:
        """One per output."""
        return math.prod(outputs.shape[1:])

    def curvature(self, outputs: Tensor, targets: Tensor) -> DiagonalCurvature:
        """σ(z)σ(−z) on the diagonal; the product of two sigmoids does not cancel."""
        second = outputs.sigmoid() * (-outputs).sigmoid()
        second = second * self._scale(targets.nan_to_num().to(outputs.dtype))
        if self.weight is not None:
            second = second * self.weight.to(outputs)
        return diagonal(second, targets)

    def rounding(self, outputs: Tensor, targets: Tensor) -> None:
        """None: no digits cancel."""
