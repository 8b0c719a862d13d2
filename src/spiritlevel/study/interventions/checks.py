"""Checks of arguments that several interventions make."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ...errors import SpiritlevelError, brief, suggestion
from ...need import need, number


def check_share(share: float, *, name: str, function: str, below_one: bool = False) -> None:
    """Refuse anything but a number from 0 to 1."""
    wanted = "at least 0 and below 1" if below_one else "from 0 to 1"
    test = number(least=0, below=1) if below_one else number(least=0, most=1)
    need(name, share, test, f"a number {wanted}", "For example 0.3 for 30 %.", of=function)


def check_images(x: Tensor, *, function: str) -> None:
    """Refuse anything but float tensors of four dimensions."""
    if x.ndim != 4 or not x.is_floating_point():
        raise SpiritlevelError(
            f"The images given to {function} must be floats of shape (N, channels, height, width). "
            f"Got shape {tuple(x.shape)} of {x.dtype}. A single image: x.unsqueeze(0)."
        )


def check_labels(y: Tensor, *, num_classes: int, function: str) -> None:
    """Refuse anything but class labels from 0 to num_classes - 1."""
    if y.ndim != 1 or y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise SpiritlevelError(
            f"The labels given to {function} must be integers of shape (N,). Got shape "
            f"{tuple(y.shape)} of {y.dtype}. Class probabilities: y.argmax(dim=1)."
        )
    if y.numel() and not (int(y.min()) >= 0 and int(y.max()) < num_classes):
        raise SpiritlevelError(
            f"The labels given to {function} must be 0 to {num_classes - 1}. Got "
            f"{int(y.min())} to {int(y.max())}. Check the number of classes."
        )


def count_of(share: float, total: int) -> int:
    """The nearest whole number; a half goes up, not to the even one."""
    return math.floor(share * total + 0.5)


def no_such_layer(
    name: str, there: Sequence[str], *, function: str, argument: str
) -> SpiritlevelError:
    """The refusal of a layer name, with the nearest that exist."""
    paths = [path for path in there if path]
    hint = suggestion(name, paths, most=1)
    return SpiritlevelError(
        f"The {argument!r} argument of {function} must name layers of the model. Got {brief(name)}."
        f"{hint} There are: {', '.join(paths[:12])}{', ...' if len(paths) > 12 else ''}."
    )
