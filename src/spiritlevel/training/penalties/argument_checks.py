"""Checks of what penalties are given: weights, counts, losses, outputs and targets."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import NotFinite, SpiritlevelError
from ...model.losses import CrossEntropy, Loss
from ...need import LARGEST, need, number, whole


def check_weight(weight: Any) -> float:
    """Refuse a weight that is not a finite number of at least 0."""
    then = "Paper 004 uses 0.001 to 1; 0 measures without changing training."
    fits = number(least=0, below=LARGEST)
    need("weight", weight, fits, "a finite number of at least 0", then, of="a penalty")
    return float(weight)


def check_count(name: str, count: Any, advice: str) -> int:
    """Refuse a count that is not a whole number of at least 1; `advice` ends the error."""
    wanted = "a whole number of at least 1"
    checked: int = need(name, count, whole(least=1), wanted, advice, of="a penalty")
    return checked


def check_probes(probes: Any) -> int:
    """Refuse a number of random directions below 1."""
    return check_count("probes", probes, "1 is enough: noise averages out over the steps.")


def check_batch_size(size: Any) -> int:
    """Refuse a number of samples below 1."""
    return check_count(
        "batch_size", size, "Pass len(x), and leave empty batches out (drop_last=True)."
    )


def check_loss_value(loss: Tensor) -> None:
    """Refuse a loss that is not one finite number with its graph."""
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        got = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise SpiritlevelError(
            "The 'loss' argument must be the mean loss of the batch, one number. "
            f"Got {got}. Use reduction='mean', or pass loss.mean()."
        )
    if not loss.requires_grad:
        raise SpiritlevelError(
            "The 'loss' argument must carry its graph. Got a loss that needs no gradient. Compute "
            "it outside torch.no_grad(), from parameters with requires_grad=True, and pass it "
            "before loss.backward() and without .detach() or .item()."
        )
    if not bool(torch.isfinite(loss.detach())):
        raise NotFinite(
            f"The loss of the batch must be finite. Got {float(loss.detach())}. The training has "
            "diverged, or the batch holds NaN or infinity: lower the learning rate or look at the "
            "data. Nothing was changed by the penalty."
        )


def check_trained(layer: str, module: nn.Module) -> None:
    """Refuse a layer whose weight is frozen: a penalty cannot change it."""
    if not module.weight.requires_grad:
        raise SpiritlevelError(
            f"The layer {layer!r} of the penalty must have a weight with requires_grad=True. Got a "
            "frozen one. Unfreeze it, or choose a layer that is trained."
        )


def check_labels(loss: Loss, outputs: Tensor, targets: Tensor) -> tuple[Tensor, bool]:
    """The targets as the loss takes them, and whether all of them are classes, none ignored.

    Refuses outputs and targets that cannot be measured.
    """
    if len(outputs) == 0:
        raise SpiritlevelError(
            "The batch of a penalty must hold at least one sample. Got outputs of shape "
            f"{tuple(outputs.shape)}. Leave empty batches out (drop_last=True)."
        )
    if not outputs.requires_grad:
        raise SpiritlevelError(
            "The 'outputs' of a penalty must carry their graph. Got outputs that need no gradient. "
            "Run the model outside torch.no_grad(), with parameters that require gradients."
        )
    values = outputs.detach()
    if not all(map(math.isfinite, map(float, values.aminmax()))):  # NaN is passed on
        raise NotFinite(
            "The outputs of the batch must be finite. Got NaN or infinity. The training has "
            "diverged, or the batch holds NaN or infinity: lower the learning rate or look at the "
            "data. Nothing was changed by the penalty."
        )
    if not targets.is_floating_point():
        targets = targets.long()
    loss.check(values, targets, where="the batch")
    if isinstance(loss, CrossEntropy) and not targets.is_floating_point() and targets.numel():
        lowest, highest = map(int, targets.aminmax())
        if lowest >= 0 and highest < loss.positions(values, targets).num_classes:
            return targets, True
    if bool(loss.invalid(values, targets).any()):
        loss.refuse_invalid(values, targets, where="the batch")
    return targets, False
