"""A forward pass whose operations torch.compile fuses, where a step is on a whole batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Forward = Callable[..., Tensor]
# Networks that a process may compile one after another. At torch's own limit it gives up and goes
# the usual way, so that the last digits of a run would depend on the runs before it.
MOST = 1 << 20


class Fused:
    """Calls a function of which the last argument is a batch.

    The smaller batch at the end of an epoch goes the usual way: to compile for it would take longer
    than it ever saves.

    Args:
        forward: the function.
        size: samples of a whole batch.
        dim: where the batch has its samples.
    """

    def __init__(self, forward: Forward, size: int, *, dim: int = 0) -> None:
        limits = torch._dynamo.config
        limits.cache_size_limit = limits.accumulated_cache_size_limit = MOST
        # Not for any size, which torch would try for the second one that it meets: see above.
        self._forward, self._fused = forward, torch.compile(forward, dynamic=False)
        self._size, self._dim = size, dim

    def __call__(self, *given: Any) -> Tensor:
        """What the function returns, up to round-off."""
        is_whole = given[-1].shape[self._dim] == self._size
        return self._fused(*given) if is_whole else self._forward(*given)
