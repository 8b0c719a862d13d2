"""Checks of the arguments of SAM and its variants."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch.optim import LBFGS, Optimizer

from ...ground.errors import SpiritlevelError, brief

RADIUS = "rho"  # the name of a group's own radius


def check_wrappable(name: str, optimizer: object) -> None:
    """Refuse what is not an optimizer, or does not step from one gradient."""
    if not isinstance(optimizer, Optimizer):
        raise SpiritlevelError(
            f"The 'optimizer' argument of {name} must be a torch optimizer. Got "
            f"{brief(optimizer)}. Write {name}(torch.optim.SGD(model.parameters(), lr=0.1))."
        )
    if isinstance(optimizer, LBFGS) or hasattr(optimizer, "perturbed"):
        kind = type(optimizer).__name__
        raise SpiritlevelError(
            f"The 'optimizer' argument of {name} must make one step from one gradient. Got {kind}, "
            "which evaluates the loss at several places itself. Use SGD, Adam or AdamW."
        )
    if RADIUS in optimizer.defaults:
        kind = type(optimizer).__name__
        raise SpiritlevelError(
            f"The 'optimizer' argument of {name} must not have its own 'rho': {name} "
            f"keeps its radius under that name. Got {kind}, which has one. Use SGD, Adam or AdamW."
        )


def check_radius(name: str, rho: Any) -> None:
    """Refuse a radius that is not a finite number of at least 0."""
    if isinstance(rho, bool) or not isinstance(rho, (int, float)) or not 0 <= rho < math.inf:
        raise SpiritlevelError(
            f"The 'rho' argument of {name}, and that of each parameter group, must be a number "
            f"≥ 0. Got {brief(rho)}. Typical: 0.05 (SAM), 0.5 (ASAM)."
        )


def check_count(name: str, argument: str, value: Any) -> None:
    """Refuse what is not a whole number ≥ 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise SpiritlevelError(
            f"The {argument!r} argument of {name} must be a whole number ≥ 1. Got {brief(value)}."
        )


def check_whole(name: str, weights: Iterable[Tensor]) -> None:
    """Refuse weights of which this process holds a part only."""
    if any(type(weight).__name__ == "DTensor" for weight in weights):
        raise SpiritlevelError(
            f"{name} needs whole weights in every process, and these are sharded (FSDP). Use "
            "DistributedDataParallel."
        )
