"""torch's cross-entropies in the form that loses no digits in confident networks.

In float32 the second derivatives of torch's own are 8 % off at a loss of 1e-7.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ....model.losses import BinaryCrossEntropy, CrossEntropy


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """As F.cross_entropy, which gets what is unusual, and what it refuses."""
    wide, is_soft = _wide(input), target.is_floating_point()
    shape = input.shape if is_soft else input.shape[:1] + input.shape[2:]
    usual = input.dim() > 1 and target.shape == shape and not (is_soft and ignore_index >= 0)
    if wide is None or not usual or not _plain(size_average, reduce, reduction, weight):
        return F.cross_entropy(
            input, target, weight, size_average, ignore_index, reduce, reduction, label_smoothing
        )
    if not is_soft:  # raises what torch raises for labels that are no class
        F.nll_loss(wide.detach(), target, ignore_index=ignore_index, reduction="sum")
    loss = CrossEntropy(
        label_smoothing=label_smoothing,
        class_weights=weight,
        ignore_index=ignore_index,
        class_dim=1,
    )
    with torch.autocast(input.device.type, enabled=False):
        values = loss.position_values(wide, target)
        if reduction == "mean":
            return values.sum() / loss.weights(wide.detach(), target).sum().to(values.dtype)
    return values.sum() if reduction == "sum" else values.reshape(input.shape[:1] + input.shape[2:])


def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:
    """As F.binary_cross_entropy_with_logits, which gets what is unusual, and what it refuses."""
    wide, constant = _wide(input), not target.requires_grad and target.shape == input.shape
    if (
        wide is None
        or not constant
        or not _plain(size_average, reduce, reduction, weight, pos_weight)
    ):
        return F.binary_cross_entropy_with_logits(
            input, target, weight, size_average, reduce, reduction, pos_weight
        )
    with torch.autocast(input.device.type, enabled=False):
        loss = BinaryCrossEntropy(weight=weight, pos_weight=pos_weight)
        values = loss.element_values(wide, target.to(wide.dtype))
    return values if reduction == "none" else getattr(values, reduction)()


def _wide(input: Tensor) -> Tensor | None:
    """The outputs in float32 at least, where torch would compute in that too."""
    if input.dtype in (torch.float32, torch.float64):
        return input
    return input.float() if torch.is_autocast_enabled(input.device.type) else None


def _plain(size_average: Any, reduce: Any, reduction: Any, *constants: Tensor | None) -> bool:
    """Whether there is nothing outdated in the call, and nothing trained besides the outputs."""
    trained = any(each is not None and each.requires_grad for each in constants)
    known = reduction in ("mean", "sum", "none")
    return size_average is None and reduce is None and known and not trained
