"""What losses share in which every output has its own loss: shapes, masks, sums, diagonals."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...ground.errors import SpiritlevelError
from ...math.curvature import DiagonalCurvature
from ..host import counting_type
from .protocol import as_mask


def check_same_shape(name: str, outputs: Tensor, targets: Tensor, where: str) -> None:
    """Refuse targets whose shape is not the outputs' shape: torch would combine the samples."""
    if outputs.shape != targets.shape:
        raise SpiritlevelError(
            f"The loss {name!r} needs targets of the outputs' shape {tuple(outputs.shape)}. "
            f"Got {tuple(targets.shape)} in {where}. Reshape one of them, for example y[:, None]."
        )


def check_constant(
    name: str, argument: str, constant: Tensor | None, outputs: Tensor, where: str
) -> None:
    """Refuse weights that differ between samples: the data is not always cut at the same place."""
    if constant is None:
        return
    shape, of_sample = tuple(constant.shape), tuple(outputs.shape[1:])
    if len(shape) == outputs.dim() and shape[0] == 1:
        shape = shape[1:]
    pairs = zip(reversed(shape), reversed(of_sample), strict=False)
    if len(shape) > len(of_sample) or any(size not in (1, whole) for size, whole in pairs):
        raise SpiritlevelError(
            f"The {argument!r} of the loss {name!r} must be the same for every sample and fit "
            f"outputs of shape {of_sample} per sample. Got shape {tuple(constant.shape)} in "
            f"{where}. For weights by sample pass a function (outputs, targets) that returns one "
            "loss per sample, with the weights in the targets."
        )


def mask_targets(name: str, targets: Tensor, mask: Tensor, where: str) -> Tensor:
    """The targets with NaN where the mask is 0; NaN in unmasked targets is refused as invalid."""
    shown = as_mask(mask, targets.shape)
    if shown is None:
        raise SpiritlevelError(
            f"A mask of the loss {name!r} needs the targets' shape {tuple(targets.shape)} or its "
            f"leading dimensions. Got {tuple(mask.shape)} in {where}. Reshape the mask that "
            "forward returns."
        )
    if not targets.is_floating_point():
        targets = targets.to(torch.get_default_dtype())
    return targets.masked_fill(~shown, math.nan)


def refuse_nonfinite_targets(name: str, where: str) -> None:
    """Raise SpiritlevelError: some target is not finite."""
    raise SpiritlevelError(
        f"The targets of the loss {name!r} must be finite. Got NaN or infinity in "
        f"{where}. Remove or repair those samples, or return a mask from forward."
    )


def sum_shown(elements: Tensor, targets: Tensor) -> Tensor:
    """The sum over a sample of the losses of its elements that count."""
    return _only_shown(elements, targets).sum(dim=1)


def count_shown(outputs: Tensor, targets: Tensor) -> Tensor:
    """How many elements of a sample count; not in half precision, which cannot count far."""
    dtype = counting_type(outputs.device)
    if not targets.is_floating_point():
        count = math.prod(outputs.shape[1:])
        return outputs.new_full((len(outputs),), count, dtype=dtype)
    return _shown(targets).to(dtype).sum(dim=1)


def diagonal(elements: Tensor, targets: Tensor) -> DiagonalCurvature:
    """Second derivatives of the elements that count."""
    return DiagonalCurvature(_only_shown(elements, targets))


def _shown(targets: Tensor) -> Tensor:
    """Which targets count, shape (N, elements)."""
    return ~torch.isnan(targets).reshape(len(targets), -1)


def _only_shown(elements: Tensor, targets: Tensor) -> Tensor:
    """The elements by sample, 0 where the target does not count."""
    flat = elements.reshape(len(elements), -1)
    if not targets.is_floating_point():
        return flat
    return torch.where(_shown(targets), flat, torch.zeros_like(flat))
