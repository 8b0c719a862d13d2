"""A forward pass for a penalty alone, which leaves model and random state as they were."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ...model.losses import Loss, total_weight
from ...model.model_state import preserved


def separate_forward(
    model: nn.Module,
    x: Any,
    around: contextlib.AbstractContextManager[None],
    *,
    labels: Tensor | None = None,
) -> Any:
    """What the model returns for a batch, with its graph; `around` is entered for that.

    The model runs in the mode it is in: batch statistics of BatchNorm are part of the function, its
    running statistics are not touched, and dropout draws its own mask without moving torch's random
    state. Models of transformers are also given the `labels`, and return their own loss with the
    outputs.
    """
    # Copies take the updates of running statistics. Restoring the model's buffers afterwards would
    # be too late: the graph may hold them.
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    args, kwargs = _arguments(x)
    if labels is not None:
        kwargs["labels"] = labels
    device = next(model.parameters()).device
    with preserved(model, device), around, torch.enable_grad():
        return functional_call(model, buffers, args, kwargs)


def mean_loss(loss: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean loss of a batch, with its graph; refuses targets that do not fit."""
    if not targets.is_floating_point():
        targets = targets.long()
    values = outputs.detach()
    loss.check(values, targets, where="the batch")
    if bool(torch.isfinite(values).all()) and bool(loss.invalid(values, targets).any()):
        loss.refuse_invalid(values, targets, where="the batch")
    weight = total_weight(loss, outputs, targets)
    # autocast would round the products in it to eight bits
    with torch.enable_grad(), torch.autocast(outputs.device.type, enabled=False):
        return loss.values(outputs.to(weight.dtype), targets).sum() / weight


def _arguments(x: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """How the model is called with an input, a tuple of inputs, or a dict of them."""
    if isinstance(x, Mapping):
        return (), dict(x)
    return (tuple(x) if isinstance(x, list | tuple) else (x,)), {}
