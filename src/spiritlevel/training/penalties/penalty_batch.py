"""One batch of a training step, as a penalty sees it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...ground.errors import SpiritlevelError
from ...model.forwards import PretrainedForward, scores
from ...model.losses import Loss
from .separate_forward import mean_loss
from .third_derivatives import thrice_differentiable


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
