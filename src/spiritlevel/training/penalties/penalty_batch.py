"""One batch of a training step, as a penalty sees it, and a forward pass for the penalty alone."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ...ground.errors import SpiritlevelError
from ...model.forwards import PretrainedForward, scores
from ...model.losses import Loss, total_weight
from ...model.model_state import preserved
from .third_derivatives import thrice_differentiable


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


class PenaltyBatch:
    """What is known of a batch after its forward pass.

    What the caller of the penalty passed is used as it is. The rest is computed when a penalty asks
    for it, so a penalty pays only for what it uses.
    """

    def __init__(
        self,
        targets: Tensor | None,
        size: int,
        loss_function: Loss,
        *,
        returned: Any = None,
        loss: Tensor | None = None,
        label_reader: PretrainedForward | None = None,
    ) -> None:
        """`returned` is what the model returned: a tensor, or an object with .logits.

        `label_reader` knows how a model of transformers reads its labels; None for other models.
        """
        self.size = size
        self._loss_function, self._label_reader = loss_function, label_reader
        self._targets, self._returned, self._loss = targets, returned, loss

    @property
    def outputs(self) -> Tensor:
        """The outputs of the model for this batch, with their graph."""
        if self._returned is None:
            raise SpiritlevelError(
                "This penalty needs the outputs of the batch, and the model was not called inside "
                "`with penalty.shared_forward():` since the last step. Run the model in that "
                "block, outside torch.no_grad(); or pass outputs=; or call penalty(x, y) without "
                "loss=, which runs the model itself."
            )
        return scores(self._returned)

    @property
    def targets(self) -> Tensor:
        """What the outputs are compared with: labels or values."""
        if self._targets is None:
            raise SpiritlevelError(
                "This penalty needs the targets of the batch. Got y=None. Call penalty(x, y) with "
                "the targets of the training loss."
            )
        if self._label_reader is not None:
            self._targets = self._as_the_model_reads(self._label_reader, self._targets)
            self._label_reader = None
        return self._targets

    @property
    def loss(self) -> Tensor:
        """The mean loss of the batch, with its graph."""
        if self._loss is None:
            targets = self.targets
            with thrice_differentiable():
                self._loss = mean_loss(self._loss_function, self.outputs, targets)
        return self._loss

    def _as_the_model_reads(self, reader: PretrainedForward, labels: Tensor) -> Tensor:
        """A causal language model compares an output with the next token, for example."""
        loss = getattr(self._returned, "loss", None)
        loss = self._loss if loss is None else loss
        with torch.no_grad():
            model_loss = None if loss is None else float(loss)
            _, targets, *mask = reader.align(self.outputs, labels, model_loss)
        return (
            self._loss_function.apply_mask(targets, mask[0], where="the batch") if mask else targets
        )
