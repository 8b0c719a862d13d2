"""What a user passes as `loss=`, turned into a Loss."""

from __future__ import annotations

import copy
from collections.abc import Callable

from torch import Tensor, nn

from ...errors import SpiritlevelError
from .callable_loss import CallableLoss
from .cross_entropy import CrossEntropy
from .elementwise import BinaryCrossEntropy, MeanSquaredError
from .protocol import Loss

_BY_NAME: dict[str, Callable[[], Loss]] = {
    "cross_entropy": CrossEntropy,
    "mse": MeanSquaredError,
    "bce": BinaryCrossEntropy,
}


def resolve(loss: str | nn.Module | Callable[[Tensor, Tensor], Tensor] | Loss) -> Loss:
    """Turn what a user passes as `loss=` into a Loss.

    >>> resolve("mse").name
    'mse'
    >>> resolve(nn.CrossEntropyLoss(label_smoothing=0.1)).name
    'cross_entropy (label_smoothing=0.1)'
    """
    if isinstance(loss, str):
        if loss not in _BY_NAME:
            raise SpiritlevelError(
                f"The 'loss' argument must be one of {', '.join(map(repr, _BY_NAME))}, a torch "
                "loss module, or a function (outputs, targets) -> one loss per sample. "
                f"Got {loss!r}."
            )
        return _BY_NAME[loss]()
    if isinstance(loss, nn.Module) and getattr(loss, "reduction", "mean") == "sum":
        raise SpiritlevelError(
            f"The 'loss' argument must average over samples. Got {loss!r} with reduction='sum'. "
            "Pass the same loss with reduction='mean' and multiply the result by the number of "
            "samples if you need the sum."
        )
    if isinstance(loss, nn.CrossEntropyLoss):
        return CrossEntropy(
            label_smoothing=loss.label_smoothing,
            class_weights=loss.weight,
            ignore_index=loss.ignore_index,
        )
    if isinstance(loss, nn.MSELoss):
        return MeanSquaredError()
    if isinstance(loss, nn.BCEWithLogitsLoss):
        return BinaryCrossEntropy(weight=loss.weight, pos_weight=loss.pos_weight)
    if isinstance(loss, nn.Module):
        unreduced = copy.copy(loss)
        if hasattr(loss, "reduction"):
            unreduced.reduction = "none"  # type: ignore[assignment]
        return CallableLoss(unreduced, type(loss).__name__)
    if isinstance(loss, CrossEntropy | MeanSquaredError | BinaryCrossEntropy | CallableLoss):
        return loss
    if callable(loss):
        return CallableLoss(loss, getattr(loss, "__name__", type(loss).__name__))
    raise SpiritlevelError(
        "The 'loss' argument must be a name, a torch loss module or a function "
        f"(outputs, targets) -> one loss per sample. Got {type(loss).__name__}."
    )
