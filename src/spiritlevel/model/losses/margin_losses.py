"""torch's margin losses in plain tensor operations: its own have no second derivative."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor, nn


def differentiable_margin(
    module: nn.MultiMarginLoss | nn.MultiLabelMarginLoss,
) -> Callable[[Tensor, Tensor], Tensor]:
    """The loss of each sample as the module computes it, in operations of any derivative."""
    if isinstance(module, nn.MultiLabelMarginLoss):
        return multi_label_margin
    weight = None if module.weight is None else module.weight.detach()
    return functools.partial(multi_margin, p=module.p, margin=module.margin, weight=weight)


def multi_margin(
    outputs: Tensor, targets: Tensor, *, p: int, margin: float, weight: Tensor | None
) -> Tensor:
    """Σ_{j≠y} w_y max(0, margin − z_y + z_j)^p / C.

    >>> z = torch.tensor([[0.0, 0.5, -2.0]])
    >>> multi_margin(z, torch.tensor([0]), p=1, margin=1.0, weight=None)      # (1.5 + 0) / 3
    tensor([0.5000])
    """
    _check_labels(outputs, targets, lowest=0)
    label = targets[:, None]
    gaps = (margin - outputs.gather(1, label) + outputs).clamp(min=0)
    if p == 2:
        gaps = gaps.square()
    terms = gaps.scatter(1, label, 0.0).sum(dim=1) / outputs.shape[1]
    return terms if weight is None else terms * weight.to(outputs)[targets]


def multi_label_margin(outputs: Tensor, targets: Tensor) -> Tensor:
    """Σ over the labels y of a sample and all other classes j of max(0, 1 − z_y + z_j) / C.

    The labels of a sample end at its first −1.
    """
    _check_labels(outputs, targets, lowest=-1)
    is_label = (targets >= 0).cumprod(dim=1).bool()
    label = targets.clamp(min=0)
    is_target = torch.zeros_like(outputs, dtype=torch.int64)
    is_target = is_target.scatter_add(1, label, is_label.long()) > 0
    gaps = (1 - outputs.gather(1, label)[:, :, None] + outputs[:, None, :]).clamp(min=0)
    counted = is_label[:, :, None] & ~is_target[:, None, :]
    return torch.where(counted, gaps, 0.0).sum(dim=(1, 2)) / outputs.shape[1]


def _check_labels(outputs: Tensor, targets: Tensor, *, lowest: int) -> None:
    """Refuse what would read outside the outputs, which on a GPU ends all work there."""
    fits = targets.shape == (outputs.shape if lowest else outputs.shape[:1])
    if outputs.dim() != 2 or targets.is_floating_point() or not fits:
        needed = "the outputs' shape" if lowest else "one class number per sample"
        raise ValueError(f"needs outputs of shape (samples, classes) and targets of {needed}")
    if bool(((targets < lowest) | (targets >= outputs.shape[1])).any()):
        raise ValueError(f"labels must lie in [{lowest}, {outputs.shape[1] - 1}]")
