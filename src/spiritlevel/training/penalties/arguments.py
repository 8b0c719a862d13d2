"""The checks that every penalty makes of its arguments."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import SpiritlevelError


def check_weight(weight: Any) -> float:
    """A finite number of at least 0."""
    known = isinstance(weight, int | float) and not isinstance(weight, bool)
    if not known or not math.isfinite(weight) or weight < 0:
        raise SpiritlevelError(
            f"The 'weight' argument of a penalty must be a finite number of at least 0. Got "
            f"{weight!r}. Paper 004 uses 0.001 to 1; 0 measures without changing training."
        )
    return float(weight)


def check_count(name: str, count: Any, advice: str) -> int:
    """A whole number of at least 1."""
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise SpiritlevelError(
            f"The {name!r} argument of a penalty must be a whole number of at least 1. "
            f"Got {count!r}. {advice}"
        )
    return count


def check_probes(probes: Any) -> int:
    """How many random directions."""
    return check_count("probes", probes, "1 is enough: noise averages out over the steps.")


def check_batch_size(size: Any) -> int:
    """How many samples the loss is a mean of."""
    return check_count(
        "batch_size", size, "Pass len(x), and leave empty batches out (drop_last=True)."
    )


def check_loss_value(loss: Tensor) -> None:
    """One finite number that still knows how it was computed."""
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
        raise SpiritlevelError(
            f"The loss of the batch must be finite. Got {float(loss.detach())}. The training has "
            "diverged, or the batch holds NaN or infinity: lower the learning rate or look at the "
            "data. Nothing was changed by the penalty."
        )


def find_layer(model: nn.Module, layer: str, kinds: tuple[type[nn.Module], ...]) -> nn.Module:
    """The named module, of one of these kinds and with a weight that is trained."""
    known = {name: module for name, module in model.named_modules() if isinstance(module, kinds)}
    if layer not in known:
        words = " or ".join(kind.__name__ for kind in kinds)
        raise SpiritlevelError(
            f"The layer of a penalty must be the path of a {words} of the model. Got {layer!r}. "
            f"There are: {', '.join(known) or 'none'}."
        )
    check_trained(layer, known[layer])
    return known[layer]


def check_trained(layer: str, module: nn.Module) -> None:
    """Refuse a frozen weight: it stays where it is, however flat the loss is around it."""
    if not module.weight.requires_grad:
        raise SpiritlevelError(
            f"The layer {layer!r} of the penalty must have a weight with requires_grad=True. Got a "
            "frozen one. Unfreeze it, or choose a layer that is trained."
        )
