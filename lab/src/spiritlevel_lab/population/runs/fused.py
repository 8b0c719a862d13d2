"""A forward pass whose operations torch.compile fuses, where a step is on a whole batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Forward = Callable[..., Tensor]
# Networks that a process may compile one after another. At torch's own limit, 8, it would give up
# and go the usual way, and the last digits of a run would depend on the runs before it.
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
        # Not for any size, which torch would try for the second one that it meets: see above.
        self._forward, self._fused = forward, torch.compile(forward, dynamic=False)
        self._size, self._dim = size, dim

    def __call__(self, *given: Any) -> Tensor:
        """What the function returns, up to round-off."""
        if given[-1].shape[self._dim] != self._size:
            return self._forward(*given)
        with torch._dynamo.config.patch(cache_size_limit=MOST, accumulated_cache_size_limit=MOST):
            return self._fused(*given)
