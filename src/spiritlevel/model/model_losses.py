"""What the models of transformers make of their scores and labels before they compute a loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from ..ground.errors import SpiritlevelError

# What the labels of pixels that do not count are called in a configuration.
_IGNORED_PIXELS = ("semantic_loss_ignore_index", "loss_ignore_index")
# Of a configuration: what parts of the loss that are no function of single samples are times.
_COEFFICIENTS = ("aux_loss_coef", "z_loss_coef", "aux_loss_alpha")


def by_pixel(model: nn.Module, outputs: Tensor, labels: Tensor) -> bool:
    """Whether these are scores (N, C, h, w) and class numbers (N, H, W) of a segmentation."""
    known = any(hasattr(model.config, name) for name in _IGNORED_PIXELS)
    return known and outputs.dim() == 4 and labels.dim() == 3 and not labels.is_floating_point()


def as_large_as(labels: Tensor, outputs: Tensor) -> Tensor:
    """The scores of every pixel; most models compute them on a coarser grid."""
    size = labels.shape[-2:]
    if outputs.shape[-2:] == size:
        return outputs
    return F.interpolate(outputs, size=size, mode="bilinear", align_corners=False)


def with_usual_ignored(model: nn.Module, labels: Tensor) -> Tensor:
    """Labels with torch's −100 where the model's own loss ignores a pixel."""
    ignored = next(getattr(model.config, n) for n in _IGNORED_PIXELS if hasattr(model.config, n))
    return labels.masked_fill(labels == ignored, -100)


def refuse_added_losses(model: nn.Module, output: Any, name: str) -> None:
    """Raise SpiritlevelError if the model's own loss is not a mean over samples and no more."""
    fields = output if isinstance(output, Mapping) else {}
    parts = [
        field
        for field, value in fields.items()
        if field.endswith(("aux_loss", "z_loss")) and value is not None
    ]
    config = vars(getattr(model, "config", object)).items()
    coefficients = [value for key, value in config if key.endswith(_COEFFICIENTS)]
    if parts and (not coefficients or any(coefficients)):
        raise SpiritlevelError(
            f"The model adds the losses of its routers ({', '.join(parts)}) to its own, which are "
            "no mean over samples, so their curvature cannot be measured. Set "
            f"model.config.output_router_logits = False to measure {name!r} without them."
        )
    if isinstance(getattr(model, "auxiliary_head", None), nn.Module):
        raise SpiritlevelError(
            f"The model adds the loss of its auxiliary head to its own, which {name!r} of the "
            "logits leaves out. Set model.auxiliary_head = None to measure the model without it, "
            "as it is used after training."
        )
