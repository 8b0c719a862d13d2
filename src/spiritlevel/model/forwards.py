"""How a model is run on a batch, and with which loss, so that `measure` takes it unchanged.

Models of Hugging Face transformers are run in their own way. Nothing here imports transformers: a
model of theirs can only come from code that already did.
"""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..ground.errors import SpiritlevelError, is_out_of_memory
from .batches import TARGET_KEYS, Forward
from .losses import AnyLoss, CrossEntropy, Loss, resolve
from .model_losses import as_large_as, by_pixel, refuse_added_losses, with_usual_ignored

# Relative difference above which two losses of the same outputs are not the same, in half precision
# and otherwise.
APART_IN_HALF, APART = 0.01, 1e-4


def is_pretrained(model: nn.Module) -> bool:
    """Whether this is a transformers model, possibly wrapped by PEFT."""
    transformers = sys.modules.get("transformers")
    if transformers is None:
        return False
    base = getattr(model, "get_base_model", None)
    return isinstance(base() if callable(base) else model, transformers.PreTrainedModel)


def loss_and_forward(
    model: nn.Module, loss: AnyLoss, forward: Forward | None
) -> tuple[Loss, Forward]:
    """What a user passes as `loss=` and `forward=`, for this model.

    For models of transformers, cross-entropy has the classes in the last dimension, and a loss that
    is given by name must agree with the model's own.
    """
    pretrained = is_pretrained(model)
    resolved = resolve(loss, model)
    if not pretrained:
        return resolved, forward or default_forward
    if isinstance(resolved, CrossEntropy) and resolved.class_dim is None:
        resolved = copy.copy(resolved)
        resolved.class_dim = -1
    return resolved, forward or PretrainedForward(resolved, by_name=isinstance(loss, str))


def split_targets(batch: Mapping[str, Any]) -> tuple[dict[str, Any], Tensor]:
    """A dict batch without its targets, and the targets."""
    key = next((key for key in TARGET_KEYS if key in batch), None)
    if key is None:
        raise SpiritlevelError(
            f"A dict batch needs its targets under one of {', '.join(TARGET_KEYS)}. "
            f"Got the keys {', '.join(map(str, batch))}. Rename the key, or pass "
            "forward=lambda model, batch: (outputs, targets)."
        )
    return {name: value for name, value in batch.items() if name != key}, batch[key]


def default_forward(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    """Run `(x, y)`, or a dict with its labels under one of TARGET_KEYS, as in Hugging Face."""
    if isinstance(batch, Mapping):
        inputs, targets = split_targets(batch)
        return scores(model(**inputs)), targets
    if not isinstance(batch, list | tuple) or len(batch) != 2:
        size = f" of {len(batch)}" if isinstance(batch, list | tuple) else ""
        raise SpiritlevelError(
            "A batch must be (x, y) or a dict with labels. "
            f"Got {type(batch).__name__}{size}. Pass forward=lambda model, batch: "
            "(outputs, targets) to say how to run yours."
        )
    x, y = batch
    if isinstance(x, Mapping):
        return scores(model(**x)), y
    if isinstance(x, list | tuple):
        return scores(model(*x)), y
    return scores(model(x)), y


def scores(output: Any) -> Tensor:
    """The tensor of scores in what a model returned."""
    if isinstance(output, Tensor):
        return output
    logits = (
        output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    )
    if isinstance(logits, Tensor):
        return logits
    if isinstance(output, list | tuple) and output and isinstance(output[0], Tensor):
        return output[0]
    raise SpiritlevelError(
        "The model must return a tensor of outputs, or an object with .logits. "
        f"Got {type(output).__name__}. Pass forward=lambda model, batch: (outputs, targets)."
    )


class PretrainedForward:
    """Outputs and targets such that the mean loss is the one the model itself computes.

    Whether a model compares the output at a token with that token or with the next one cannot be
    told from its class. The model's own loss of some samples tells: `find_label_shift` must be
    called with them first. Only a pair whose labels are the next tokens already is taken as it is.
    """

    def __init__(self, loss: Loss, by_name: bool) -> None:
        """A loss given by name must agree with the model's own loss."""
        self.loss, self.by_name = loss, by_name
        self.shift: bool | None = None

    def __call__(self, model: nn.Module, batch: Any) -> tuple[Tensor, ...]:
        """Outputs, targets, and a mask if the last output has no target."""
        inputs_and_labels = _inputs_and_labels(model, batch)
        if inputs_and_labels is None:
            return default_forward(model, batch)
        inputs, labels = inputs_and_labels
        outputs, labels = self._pair(model, inputs, labels)
        labels = _with_output_dim(labels, outputs)
        return _shifted(outputs, labels) if self.shift else (outputs, labels)

    def find_label_shift(self, model: nn.Module, batch: Any) -> None:
        """Find out, once, whether the model compares an output with the next token's label."""
        inputs_and_labels = _inputs_and_labels(model, batch)
        if self.shift is not None or inputs_and_labels is None:
            return
        inputs, labels = inputs_and_labels
        if not isinstance(batch, Mapping) and _are_next_tokens(model, inputs, labels):
            self.shift = False  # the model's own loss would skip a token
            return
        with torch.no_grad():
            outputs, known = self._pair(model, inputs, labels)
            model_loss = self._model_loss(model, inputs, labels)
            if model_loss is None:
                self.shift = False
            elif not math.isnan(model_loss):  # NaN if no label counts: the next samples decide
                closest, loss = self._closest(outputs, known, model_loss)
                self.shift = closest and loss != float("inf")
                # random outputs are refused by the plan, with its own text
                if not self._agree(loss, model_loss, outputs) and torch.equal(
                    self._pair(model, inputs, labels)[0], outputs
                ):
                    self._refuse_loss(loss, model_loss)

    def align(
        self, outputs: Tensor, labels: Tensor, model_loss: float | None
    ) -> tuple[Tensor, ...]:
        """Outputs, targets and mask for outputs of which the model's own loss is known."""
        labels = _with_output_dim(labels, outputs)
        # NaN if no label counts: the next batch decides
        if self.shift is None and (model_loss is None or not math.isnan(model_loss)):
            self.shift = model_loss is not None and self._closest(outputs, labels, model_loss)[0]
        return _shifted(outputs, labels) if self.shift else (outputs, labels)

    def _pair(
        self, model: nn.Module, inputs: dict[str, Any], labels: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Outputs and labels as the model's own loss compares them, but for a shift.

        An encoder–decoder gets the labels, shifted by one, as decoder input, as in training.
        """
        if _decodes_labels(model, inputs, labels):
            shift = getattr(model, "prepare_decoder_input_ids_from_labels", None)
            # without that method the model shifts them itself, on its way to its own loss
            more = {"labels": labels} if shift is None else {"decoder_input_ids": shift(labels)}
            inputs = inputs | more
        outputs = scores(model(**inputs, **_no_cache(model)))
        if by_pixel(model, outputs, labels):
            outputs = as_large_as(labels, outputs)
            if isinstance(self.loss, CrossEntropy) and self.loss.class_dim == -1:
                outputs = outputs.movedim(1, -1)
            if self.by_name:  # any other loss says itself what it ignores
                labels = with_usual_ignored(model, labels)
        return outputs, labels

    def _model_loss(self, model: nn.Module, inputs: dict[str, Any], labels: Tensor) -> float | None:
        """The loss that the model itself computes, or None if it computes none."""
        try:
            output = model(**inputs, labels=labels, **_no_cache(model))
        # labels do not fit or are unknown; DPT without its auxiliary head reads an unset name
        except (ValueError, RuntimeError, IndexError, TypeError, UnboundLocalError) as error:
            if is_out_of_memory(error):
                raise
            return None
        loss = getattr(output, "loss", None)
        if loss is not None and self.by_name:
            refuse_added_losses(model, output, self.loss.name)
        return None if loss is None else float(loss)

    def _agree(self, loss: float, model_loss: float, outputs: Tensor) -> bool:
        """Whether the loss is the model's own, if it was given by name and fits the labels."""
        if not self.by_name or loss == float("inf"):
            return True
        is_half = outputs.dtype in (torch.float16, torch.bfloat16)
        rounding = 10 * torch.finfo(torch.float32).eps * float(outputs.abs().max())
        apart = APART_IN_HALF if is_half else APART
        return abs(loss - model_loss) <= apart * abs(model_loss) + rounding

    def _refuse_loss(self, loss: float, model_loss: float) -> None:
        raise SpiritlevelError(
            f"The loss {self.loss.name!r} gives {loss:.6g} on the first batch, and the model's own "
            f"loss is {model_loss:.6g}. Pass the loss that the model uses: loss='bce' for several "
            "labels per sample, loss='mse' for regression. To measure "
            f"{self.loss.name!r} all the same, pass it as a torch module, for example "
            "loss=torch.nn.CrossEntropyLoss()."
        )

    def _closest(self, outputs: Tensor, labels: Tensor, model_loss: float) -> tuple[bool, float]:
        """Whether shifted labels give the loss closest to the model's own, and that loss."""
        by_token = not labels.is_floating_point() and labels.shape == outputs.shape[:-1]
        candidates: dict[bool, tuple[Tensor, ...]] = {
            False: (outputs, _with_output_dim(labels, outputs))
        }
        if by_token and outputs.dim() == 3:
            candidates[True] = _shifted(outputs, labels)
        losses = {shift: self._mean(*pair) for shift, pair in candidates.items()}
        closest = min(losses, key=lambda shift: abs(losses[shift] - model_loss))
        return closest, losses[closest]

    def _mean(self, outputs: Tensor, targets: Tensor, *mask: Tensor) -> float:
        """The loss of one batch; infinite if the labels do not fit, which the surface reports."""
        try:
            self.loss.check(outputs, targets, where="batch 0")
            if mask:
                targets = self.loss.apply_mask(targets, mask[0], where="batch 0")
        except SpiritlevelError:
            return float("inf")
        if bool(self.loss.invalid(outputs, targets).any()):
            return float("inf")
        wide = outputs.float()  # not double: outputs may be large, and two digits are enough here
        total = self.loss.weights(wide, targets).sum()
        return float(self.loss.values(wide, targets).sum() / total)


def _inputs_and_labels(model: nn.Module, batch: Any) -> tuple[dict[str, Any], Tensor] | None:
    """Of a dict with labels, or of a pair of inputs and labels; None for any other batch."""
    if isinstance(batch, Mapping):
        return split_targets(batch)
    if not isinstance(batch, list | tuple) or len(batch) != 2:
        return None
    x, labels = batch
    if isinstance(x, Tensor):
        return {model.main_input_name: x}, labels  # type: ignore[dict-item]
    return (dict(x), labels) if isinstance(x, Mapping) else None


def _decodes_labels(model: nn.Module, inputs: Mapping[str, Any], labels: Tensor) -> bool:
    """Whether the decoder's input is made of the labels, which are tokens."""
    if not getattr(model.config, "is_encoder_decoder", False) or labels.is_floating_point():
        return False
    return labels.dim() == 2 and not {"decoder_input_ids", "decoder_inputs_embeds"} & inputs.keys()


def _are_next_tokens(model: nn.Module, inputs: dict[str, Any], labels: Any) -> bool:
    """Whether each label is the token that follows: a pair prepared for a plain loss.

    A dict goes to the model as it is, whose own loss then counts, whatever its labels are.
    """
    tokens = inputs.get(model.main_input_name)  # type: ignore[call-overload]
    if not isinstance(tokens, Tensor) or not isinstance(labels, Tensor):
        return False
    if tokens.dim() != 2 or tokens.shape != labels.shape or torch.equal(tokens, labels):
        return False
    counted = labels[:, :-1] >= 0  # the others are ignored
    return bool(counted.any()) and torch.equal(labels[:, :-1][counted], tokens[:, 1:][counted])


def _with_output_dim(labels: Tensor, outputs: Tensor) -> Tensor:
    """Add the output dimension that labels of a regression with one output lack."""
    single = outputs.shape == (*labels.shape, 1) and labels.is_floating_point()
    return labels.unsqueeze(-1) if single else labels


def _shifted(outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compare the output at each token with the next token; the last output has none."""
    following = torch.cat([labels[:, 1:], labels[:, -1:]], dim=1)
    mask = torch.ones_like(labels, dtype=torch.bool)
    mask[:, -1] = False
    return outputs, following, mask


def _no_cache(model: nn.Module) -> dict[str, bool]:
    """Without the cache for generation, which is useless here and breaks vmap."""
    return {"use_cache": False} if hasattr(model.config, "use_cache") else {}
