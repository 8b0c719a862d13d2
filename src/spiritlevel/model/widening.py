"""A model computes in a wider number type than its own, for the time of a block.

In bfloat16 a number has two to three digits, which is not enough for a second derivative. So a
model in half precision is measured in float32: the same weights, without the rounding of every
step. Autocast inside a model's forward rounds float32 in the same way, but leaves float64 alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ..ground.errors import is_out_of_memory
from .operation_watch import OperationWatch

HALF = (torch.float16, torch.bfloat16)


@contextlib.contextmanager
def widened(model: nn.Module, dtype: torch.dtype | None) -> Iterator[None]:
    """Hold parameters and buffers in `dtype`; None leaves them as they are.

    The tensors stay the same objects and get their own values back at the end.
    """
    before: list[tuple[Tensor, Tensor]] = []
    try:
        for tensor in [*model.parameters(), *model.buffers()] if dtype is not None else []:
            if tensor.is_floating_point() and tensor.dtype != dtype:
                before.append((tensor, tensor.data))
                tensor.data = tensor.data.to(dtype)
        yield
    finally:
        for tensor, values in before:
            tensor.data = values


def choose_width(
    dtype: torch.dtype, half_seen: Callable[[torch.dtype | None], torch.dtype | None]
) -> tuple[torch.dtype | None, torch.dtype | None]:
    """The narrowest type in which a model rounds nothing to half precision; None is its own.

    `dtype` is its own type. `half_seen` runs a sample in another one and says what half precision
    was seen. The second result is what cannot be avoided, because the model's code asks for it.
    """
    is_half = dtype in HALF
    rounding: torch.dtype | None = dtype if is_half else None
    for wide in (torch.float32, torch.float64) if is_half else (None, torch.float64):
        try:
            seen = half_seen(wide)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            continue  # the measurement itself will say what is wrong, in the model's own type
        if seen is None:
            return wide, None
        rounding = seen
    return None, rounding


class PrecisionWatch(OperationWatch):
    """Notes the coarsest type in which any operation during the block has a result."""

    def __init__(self) -> None:
        """Nothing was seen yet."""
        super().__init__()
        self.coarsest = torch.float64

    @property
    def half(self) -> torch.dtype | None:
        """The half precision that was seen."""
        return self.coarsest if self.coarsest in HALF else None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for part in result if isinstance(result, list | tuple) else [result]:
            if isinstance(part, Tensor) and (part.is_floating_point() or part.is_complex()):
                eps = torch.finfo(part.dtype).eps
                if eps > torch.finfo(self.coarsest).eps:
                    self.coarsest = part.dtype.to_real()
        return result
