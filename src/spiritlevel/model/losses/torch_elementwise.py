"""torch's other losses in which every output has its own loss: Huber, L1, Poisson, BCELoss."""

from __future__ import annotations

import math
import warnings

import torch
from torch import Tensor, nn

from ...ground.errors import SpiritlevelError
from ...math.curvature import DiagonalCurvature
from .elements import (
    check_constant,
    check_same_shape,
    count_shown,
    diagonal,
    mask_targets,
    refuse_nonfinite_targets,
    sum_shown,
)
from .loss_call import LossCall
from .mean_check import check_mean
from .protocol import rounding_and_size

ELEMENTWISE = (
    nn.L1Loss,
    nn.SmoothL1Loss,
    nn.HuberLoss,
    nn.PoissonNLLLoss,
    nn.SoftMarginLoss,
    nn.HingeEmbeddingLoss,
    nn.KLDivLoss,
    nn.BCELoss,
)


class TorchElementwise:
    """One of `ELEMENTWISE`, averaged over elements, or over samples with 'batchmean'."""

    def __init__(self, module: nn.Module) -> None:
        """The module is called with reduction="none"."""
        self.name = type(module).__name__
        self._elements = LossCall(module, reduction="none")
        self._mean = LossCall(module)
        self._by_sample = module.reduction == "batchmean"
        self._takes_probabilities = isinstance(module, nn.BCELoss)
        self._weight = module.weight if isinstance(module, nn.BCELoss) else None

    def check(self, outputs: Tensor, targets: Tensor, *, where: str) -> None:
        """Refuse shapes and ranges that do not fit, and a mean that is not the module's."""
        check_same_shape(self.name, outputs, targets, where)
        check_constant(self.name, "weight", self._weight, outputs, where)
        if not bool((torch.isfinite(outputs) & torch.isfinite(targets)).all()):
            return  # overflow, or hidden by a mask; the surface refuses the rest
        if self._takes_probabilities:
            self._check_probabilities("outputs", outputs, where)
            if not bool(_are_probabilities(targets).all()):
                return  # invalid, or hidden by a mask
        wide = outputs.detach().double()
        values, weights = self.values(wide, targets), self.weights(wide, targets)
        if bool(torch.isfinite(values).all()):
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # KLDivLoss doubts its reduction at every call
                check_mean(self.name, self._mean, values, [weights], wide, targets, where)

    def _check_probabilities(self, what: str, tensor: Tensor, where: str) -> None:
        # torch refuses them too, but on a GPU so that the process can do nothing more on it
        lowest, highest = map(float, tensor.aminmax())
        if not 0 <= lowest <= highest <= 1:
            raise SpiritlevelError(
                f"The {what} of the loss {self.name!r} must lie in [0, 1]. Got values from "
                f"{lowest:g} to {highest:g} in {where}. For outputs before the sigmoid pass "
                "loss='bce'."
            )

    def invalid(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Elements with a target or a loss that is not finite, although the output is."""
        elements = self._of_elements(outputs.double(), targets)
        valid = torch.isfinite(targets) & torch.isfinite(elements)
        if self._takes_probabilities:
            valid = valid & _are_probabilities(targets)
        return torch.isfinite(outputs) & ~valid

    def refuse_invalid(self, outputs: Tensor, targets: Tensor, *, where: str) -> None:
        """Raise SpiritlevelError: some target is not finite, or some loss."""
        numbers = targets[~torch.isnan(targets)]  # what a mask hides is NaN here as well
        if len(numbers) and bool(torch.isfinite(numbers).all()):
            if self._takes_probabilities:
                self._check_probabilities("targets", numbers, where)
            elements = self._of_elements(outputs.double(), targets)
            if bool((torch.isfinite(outputs) & ~torch.isfinite(elements)).any()):
                raise SpiritlevelError(
                    f"The loss {self.name!r} must be finite. It is NaN or infinite in {where} "
                    "although outputs and targets are finite. Check the range of both there."
                )
        refuse_nonfinite_targets(self.name, where)

    def apply_mask(self, targets: Tensor, mask: Tensor, *, where: str) -> Tensor:
        """The targets with NaN where the mask is 0."""
        return mask_targets(self.name, targets, mask, where)

    def values(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of each sample, shape (N,)."""
        return sum_shown(self._of_elements(outputs, targets), targets)

    def weights(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The elements of each sample that count, or 1 if the module averages over samples."""
        count = count_shown(outputs, targets)
        return (count > 0).to(count) if self._by_sample else count

    def positions(self, outputs: Tensor, targets: Tensor) -> None:
        """None: every output has its own loss, so any grouping is valid."""

    def num_columns(self, outputs: Tensor, targets: Tensor) -> int:
        """One per output."""
        return math.prod(outputs.shape[1:])

    def curvature(self, outputs: Tensor, targets: Tensor) -> DiagonalCurvature:
        """The second derivative of every element, by one double backward for all of them."""
        with torch.enable_grad():
            z = outputs.detach().requires_grad_()
            total = self._of_elements(z, targets).sum()
            (gradient,) = torch.autograd.grad(total, z, create_graph=True)
            second = None
            if gradient.requires_grad:
                (second,) = torch.autograd.grad(gradient.sum(), z, allow_unused=True)
        elements = torch.zeros_like(outputs) if second is None else second.detach()
        return diagonal(elements, targets)

    def rounding(self, outputs: Tensor, targets: Tensor) -> Tensor | None:
        """What the sigmoid that a network ends in loses, for BCELoss; None for the others."""
        if not self._takes_probabilities:
            return None
        size = self.values(outputs.double(), targets)
        return rounding_and_size(outputs, count_shown(outputs, targets), size)

    def _of_elements(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of every element; what is hidden by a mask gets that of the target 0."""
        shown = targets.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).to(outputs.dtype)
        if not self._takes_probabilities:
            elements: Tensor = self._elements(outputs, shown)
            return elements
        # outside [0, 1] torch raises, and on a GPU it ends all work there
        inside = _are_probabilities(outputs)
        elements = self._elements(torch.where(inside, outputs, 0.5), shown.clamp(0, 1))
        return torch.where(inside, elements, math.nan)


def _are_probabilities(tensor: Tensor) -> Tensor:
    return (tensor >= 0) & (tensor <= 1)
