"""A user's function as a loss: any function that returns one value per sample."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ...errors import SpiritlevelError
from ...math.curvature import DenseCurvature
from ...math.positions import Positions


class CallableLoss:
    """Any twice differentiable `(outputs, targets) -> one loss per sample`."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor], name: str) -> None:
        """`function` must not reduce over the samples."""
        self.function = function
        self.name = name

    def check(self, outputs: Tensor, targets: Tensor, *, where: str) -> None:
        """Refuse a function that does not return one loss per sample."""
        values = self.function(outputs, targets)
        if not isinstance(values, Tensor) or values.shape[:1] != outputs.shape[:1]:
            got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise SpiritlevelError(
                f"The loss {self.name!r} must return one value per sample, shape "
                f"({len(outputs)},). Got {got} in {where}. Use reduction='none' in it."
            )

    def invalid(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Samples whose loss is not finite: which targets a user's function accepts is unknown."""
        return ~torch.isfinite(self.values(outputs, targets))

    def refuse_invalid(self, outputs: Tensor, targets: Tensor, *, where: str) -> None:
        """Raise SpiritlevelError: some loss is not finite."""
        raise SpiritlevelError(
            f"The loss {self.name!r} must be finite. It is NaN or infinite in {where} although "
            "the outputs are finite. Check its targets there."
        )

    def apply_mask(self, targets: Tensor, mask: Tensor, *, where: str) -> Tensor:
        """Raise SpiritlevelError: only the function itself could apply a mask."""
        raise SpiritlevelError(
            f"The loss {self.name!r} is a user's function, and a mask cannot be applied to it from "
            f"outside ({where}). Put the mask into the targets and use it in the function."
        )

    def values(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of each sample, shape (N,); elementwise losses are averaged within a sample."""
        if targets.is_floating_point():  # the outputs are in float64, whatever the model's dtype
            targets = targets.to(outputs.dtype)
        return self.function(outputs, targets).reshape(len(outputs), -1).mean(dim=1)

    def weights(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """1 for every sample."""
        return outputs.new_ones(len(outputs))

    def positions(self, outputs: Tensor, targets: Tensor) -> Positions:
        """One position: all outputs of a sample may interact in the function."""
        return Positions((math.prod(outputs.shape[1:]),), 1)

    def num_columns(self, outputs: Tensor, targets: Tensor) -> int:
        """One per output."""
        return math.prod(outputs.shape[1:])

    def curvature(self, outputs: Tensor, targets: Tensor) -> DenseCurvature:
        """The C×C Hessian of each sample's loss by double backward through the loss alone."""
        with torch.enable_grad():
            flat = outputs.detach().reshape(len(outputs), -1).requires_grad_()
            total = self.values(flat.reshape(outputs.shape), targets).sum()
            (gradient,) = torch.autograd.grad(total, flat, create_graph=True)
            if not gradient.requires_grad:  # a loss linear in its outputs has no curvature
                return DenseCurvature(flat.new_zeros(*flat.shape, flat.shape[1]))
            rows = []
            for column in gradient.unbind(dim=1):
                (row,) = torch.autograd.grad(
                    column.sum(), flat, retain_graph=True, allow_unused=True
                )
                rows.append(torch.zeros_like(flat) if row is None else row)
        return DenseCurvature(torch.stack(rows, dim=1).detach())
