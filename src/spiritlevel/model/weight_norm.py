"""torch's weight_norm as plain operations.

Its fused kernel holds the norm fixed when its gradient is differentiated: the second derivative is
wrong, and nothing warns of it (seen in torch 2.13).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


def weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    """torch._weight_norm, with the names of its arguments: g v/‖v‖ over all but `dim`.

    With dim=-1 the norm is that of all of v.
    """
    dims = list(range(v.dim())) if dim == -1 else [d for d in range(v.dim()) if d != dim]
    return v * (g / v.square().sum(dim=dims, keepdim=dim != -1).sqrt())


class PlainWeightNorm(TorchFunctionMode):
    """Computes weight_norm by plain operations, and notes whether anything asked for it."""

    def __init__(self) -> None:
        """Nothing did yet."""
        super().__init__()
        self.is_used = False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Everything else passes."""
        if func is torch._weight_norm:
            self.is_used, func = True, weight_norm
        return func(*args, **(kwargs or {}))
