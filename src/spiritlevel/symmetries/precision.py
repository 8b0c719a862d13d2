"""Run a network as precisely as possible, and say how precise that is."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..ground.errors import is_out_of_memory
from .tracing import Run

# Sums of a few thousand terms in another order differ by less than this many last digits;
# 1e-9 leaves the same room in float64, several times over.
_LAST_DIGITS = 1e3
_FLOAT64 = 1e-9


class _Narrowest(TorchDispatchMode):
    """Notes the coarsest floating point type that any operation gives."""

    eps = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and look at what it gave."""
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and tensor.is_floating_point() and tensor.numel():
                self.eps = max(self.eps, torch.finfo(tensor.dtype).eps)
        return result


def precise(model: nn.Module, run: Run) -> tuple[nn.Module, Tensor, float]:
    """A deep copy in float64, or unchanged if that does not run; its outputs; the tolerance.

    A network that computes a part in float32 whatever its weights are is as precise as that part.
    """
    widened = copy.deepcopy(model).double()
    try:
        return widened, *_watched(widened, run)
    except Exception as error:  # anything the user's code may raise in float64
        if is_out_of_memory(error):
            raise
        unchanged = copy.deepcopy(model)
        return unchanged, *_watched(unchanged, run)


def deviation(outputs: Tensor, reference: Tensor) -> float:
    """The largest difference, as a share of the largest output; infinite if not comparable."""
    if outputs.shape != reference.shape or not bool(outputs.isfinite().all()):
        return math.inf
    largest = float((outputs - reference).detach().abs().max())
    return largest / max(float(reference.detach().abs().max()), torch.finfo(reference.dtype).tiny)


def multiple(outputs: Tensor, reference: Tensor) -> float:
    """By what the largest entry of the reference was multiplied; 1 where all of it is zero."""
    if outputs.shape != reference.shape or reference.numel() == 0:
        return 1.0
    largest = int(reference.detach().abs().argmax())
    before, after = (float(x.detach().flatten()[largest]) for x in (reference, outputs))
    return after / before if before else 1.0


@contextlib.contextmanager
def as_written() -> Iterator[None]:
    """Make attention layers call their parts, so that hooks on these parts run."""
    fast = torch.backends.mha.get_fastpath_enabled()
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def _watched(model: nn.Module, run: Run) -> tuple[Tensor, float]:
    with torch.no_grad(), _Narrowest() as watch:  # type: ignore[no-untyped-call]
        outputs = run(model)
    exact = watch.eps <= torch.finfo(torch.float64).eps
    return outputs.detach(), _FLOAT64 if exact else _LAST_DIGITS * watch.eps
