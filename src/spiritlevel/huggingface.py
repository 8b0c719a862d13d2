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

from ._batches import Forward, default_forward, scores, split_targets
from .losses import CrossEntropy, Loss

IGNORED = -100  # what transformers puts where a label does not count


def is_pretrained(model: nn.Module) -> bool:
    """Whether this is a model of transformers."""
    transformers = sys.modules.get("transformers")
    return transformers is not None and isinstance(model, transformers.PreTrainedModel)


def forward_for(model: nn.Module) -> Forward:
    """Outputs and targets of a batch such that the mean loss is the model's own."""
    if not is_pretrained(model):
        return default_forward
    if getattr(model.config, "is_encoder_decoder", False):
        return _encoder_decoder
    return _causal if _predicts_the_next_token(model) else _plain


def loss_for(model: nn.Module, loss: Loss) -> Loss:
    """Cross-entropy that knows where these models have their classes: in the last dimension."""
    if isinstance(loss, CrossEntropy) and loss.class_dim is None and is_pretrained(model):
        loss = copy.copy(loss)
        loss.class_dim = -1
    return loss


def _predicts_the_next_token(model: nn.Module) -> bool:
    from transformers.models.auto import modeling_auto

    names = set(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values())
    kinds = {kind.__name__ for kind in type(model).__mro__}
    masked = set(modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES.values())
    return bool(kinds & names) and not kinds & (masked - names)


def _plain(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    """Masked language models, classifiers of sequences and of tokens."""
    if not isinstance(batch, Mapping):
        return default_forward(model, batch)
    inputs, targets = split_targets(batch)
    return scores(model(**inputs, **_no_cache(model))), targets


def _causal(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    """The output at a token is compared with the next one; the last has none."""
    outputs, labels = _plain(model, batch)
    if not isinstance(labels, Tensor) or labels.shape != outputs.shape[:-1]:
        return outputs, labels
    following = torch.full_like(labels, IGNORED)
    following[:, :-1] = labels[:, 1:]
    return outputs, following


def _encoder_decoder(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    """The decoder reads the labels shifted by one, as the model itself would do."""
    if not isinstance(batch, Mapping) or "decoder_input_ids" in batch:
        return _plain(model, batch)
    inputs, labels = split_targets(batch)
    shifted = model.prepare_decoder_input_ids_from_labels(labels)  # type: ignore[operator]
    outputs = model(**inputs, decoder_input_ids=shifted, **_no_cache(model))
    return scores(outputs), labels


def _no_cache(model: nn.Module) -> dict[str, bool]:
    """Keys and values kept for generation are of no use here and stop vmap."""
    return {"use_cache": False} if hasattr(model.config, "use_cache") else {}
