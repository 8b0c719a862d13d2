"""How the models of Hugging Face transformers are called, so that `measure` takes them as they are.

Nothing here imports transformers: a model of theirs can only come from code that already did.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import SpiritlevelError
from .batches import Forward, default_forward, scores, split_targets
from .losses import CrossEntropy, Loss

APART = 0.01  # relative difference at which two losses are not the same


def is_pretrained(model: nn.Module) -> bool:
    """Whether this is a model of transformers, or one that PEFT has wrapped."""
    transformers = sys.modules.get("transformers")
    if transformers is None:
        return False
    base = getattr(model, "get_base_model", None)
    return isinstance(base() if callable(base) else model, transformers.PreTrainedModel)


def loss_for(model: nn.Module, loss: Loss) -> Loss:
    """Cross-entropy that knows where these models have their classes: in the last dimension."""
    if isinstance(loss, CrossEntropy) and loss.class_dim is None and is_pretrained(model):
        loss = copy.copy(loss)
        loss.class_dim = -1
    return loss


def forward_for(model: nn.Module, loss: Loss, *, by_name: bool) -> Forward:
    """How a batch goes through; a loss given by name must be the model's own."""
    return PretrainedForward(loss, by_name) if is_pretrained(model) else default_forward


class PretrainedForward:
    """Outputs and targets such that the mean loss is the one the model itself computes.

    Whether a model compares the output at a token with that token or with the next one does not
    show in its kind. It shows in its own loss of some samples, which `decide` is given first.
    """

    def __init__(self, loss: Loss, by_name: bool) -> None:
        """A loss given by name must be the model's own."""
        self.loss, self.by_name = loss, by_name
        self.shift: bool | None = None

    def __call__(self, model: nn.Module, batch: Any) -> tuple[Tensor, ...]:
        """Outputs, targets, and a mask where the last output has no target."""
        found = _inputs_and_labels(model, batch)
        if found is None:
            return default_forward(model, batch)
        inputs, labels = found
        outputs = self._outputs(model, inputs, labels)
        labels = _with_outputs(labels, outputs)
        return _shifted(outputs, labels) if self.shift else (outputs, labels)

    def decide(self, model: nn.Module, batch: Any) -> None:
        """Find out how the model reads its labels, once."""
        found = _inputs_and_labels(model, batch)
        if self.shift is not None or found is None:
            return
        inputs, labels = found
        with torch.no_grad():
            outputs = self._outputs(model, inputs, labels)
            own = _own_loss(model, inputs, labels)
            if own is None:
                self.shift = False
            elif own == own:  # not a number where nothing counts: the next samples decide
                self.shift = self._find_shift(model, inputs, outputs, labels, own)

    def align(self, outputs: Tensor, labels: Tensor, own: float | None) -> tuple[Tensor, ...]:
        """The same for outputs that are already there; `own` is the model's own loss of them."""
        labels = _with_outputs(labels, outputs)
        if self.shift is None and (own is None or own == own):  # not a number: the next decides
            self.shift = own is not None and self._closest(outputs, labels, own)[0]
        return _shifted(outputs, labels) if self.shift else (outputs, labels)

    def _outputs(self, model: nn.Module, inputs: dict[str, Any], labels: Tensor) -> Tensor:
        """An encoder–decoder reads the labels shifted by one, as it would do itself."""
        shift = getattr(model, "prepare_decoder_input_ids_from_labels", None)
        decodes = getattr(model.config, "is_encoder_decoder", False) and labels.dim() == 2
        if decodes and shift is not None and "decoder_input_ids" not in inputs:
            inputs = inputs | {"decoder_input_ids": shift(labels)}
        return scores(model(**inputs, **_no_cache(model)))

    def _find_shift(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        outputs: Tensor,
        labels: Tensor,
        own: float,
    ) -> bool:
        """Which reading of the labels gives the model's own loss of this batch."""
        closest, loss = self._closest(outputs, labels, own)
        if loss == float("inf"):
            return False
        if self.by_name and abs(loss - own) > APART * abs(own):
            if not torch.equal(self._outputs(model, inputs, labels), outputs):
                return closest  # chance is at work, which is said elsewhere
            raise SpiritlevelError(
                f"The loss {self.loss.name!r} gives {loss:.4g} on the first batch, and "
                f"the model's own loss is {own:.4g}. Pass the loss that the model uses: "
                "loss='bce' for several labels a sample, loss='mse' for regression. To measure "
                f"{self.loss.name!r} all the same, pass it as a torch module, for example "
                "loss=torch.nn.CrossEntropyLoss()."
            )
        return closest

    def _closest(self, outputs: Tensor, labels: Tensor, own: float) -> tuple[bool, float]:
        """Whether shifting the labels comes closer to the model's own loss, and the loss then."""
        by_token = not labels.is_floating_point() and labels.shape == outputs.shape[:-1]
        read = _with_outputs(labels, outputs)
        candidates: dict[bool, tuple[Tensor, ...]] = {False: (outputs, read)}
        if by_token and outputs.dim() == 3:
            candidates[True] = _shifted(outputs, labels)
        losses = {shift: self._mean(*pair) for shift, pair in candidates.items()}
        closest = min(losses, key=lambda shift: abs(losses[shift] - own))
        return closest, losses[closest]

    def _mean(self, outputs: Tensor, targets: Tensor, *mask: Tensor) -> float:
        """The loss of one batch; infinite where labels do not fit, which the surface will say."""
        try:
            self.loss.check(outputs, targets, where="batch 0")
            if mask:
                targets = self.loss.hidden(targets, mask[0], where="batch 0")
        except SpiritlevelError:
            return float("inf")
        if bool(self.loss.invalid(outputs, targets).any()):
            return float("inf")
        wide = outputs.float()  # outputs may be large, and two digits are enough here
        total = self.loss.weights(wide, targets).sum()
        return float(self.loss.values(wide, targets).sum() / total)


def _inputs_and_labels(model: nn.Module, batch: Any) -> tuple[dict[str, Any], Tensor] | None:
    """From a dict with labels, or from a pair of inputs and labels."""
    if isinstance(batch, Mapping):
        return split_targets(batch)
    if not isinstance(batch, list | tuple) or len(batch) != 2:
        return None
    x, labels = batch
    if isinstance(x, Tensor):
        return {model.main_input_name: x}, labels  # type: ignore[dict-item]
    return (dict(x), labels) if isinstance(x, Mapping) else None


def _own_loss(model: nn.Module, inputs: dict[str, Any], labels: Tensor) -> float | None:
    """What the model itself makes of the labels; None where it makes nothing of them."""
    try:
        own = getattr(model(**inputs, labels=labels, **_no_cache(model)), "loss", None)
    except (ValueError, RuntimeError, IndexError, TypeError):  # labels that do not fit, or none
        return None
    return None if own is None else float(own)


def _with_outputs(labels: Tensor, outputs: Tensor) -> Tensor:
    """Labels of a regression with one output have no dimension for it."""
    single = outputs.shape == (*labels.shape, 1) and labels.is_floating_point()
    return labels.unsqueeze(-1) if single else labels


def _shifted(outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The output at a token is compared with the next one; the last has none."""
    following = torch.cat([labels[:, 1:], labels[:, -1:]], dim=1)
    mask = torch.ones_like(labels, dtype=torch.bool)
    mask[:, -1] = False
    return outputs, following, mask


def _no_cache(model: nn.Module) -> dict[str, bool]:
    """Keys and values kept for generation are of no use here and stop vmap."""
    return {"use_cache": False} if hasattr(model.config, "use_cache") else {}
