"""Run a network as precisely as possible, or as its formulas are meant.

A normalization divides by √(variance + ε). Without ε the size of what it reads would be free; with
ε it is free up to a small remainder, and that would hide the symmetry from linear algebra. So would
the rounding of a part that the network computes in float32 whatever its weights are.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..ground.errors import is_out_of_memory
from .tracing import Run

# Sums of a few thousand terms in another order differ by less than this many last digits;
# 1e-9 leaves the same room in float64, several times over.
_LAST_DIGITS = 1e3
_FLOAT64 = 1e-9
_LARGEST = 1e-3  # an ε in use is no larger
_SHRINK = 1e-20  # not 0: a constant row would be divided by 0
_GUARDED = {
    *("add", "add_", "__add__", "__radd__", "__iadd__"),
    *("layer_norm", "native_layer_norm", "group_norm", "rms_norm", "instance_norm"),
}
_SLOPE = 0.2  # of a leaky ReLU
_LEAKY = {"relu": nn.functional.leaky_relu, "relu_": nn.functional.leaky_relu_}
_NARROW = {torch.float32, torch.float16, torch.bfloat16}
_CASTS = {"float", "half", "bfloat16"}


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


class Ideal(TorchFunctionMode):
    """Shrinks every ε that is added to a tensor or given to a normalization; stays in float64.

    A BatchNorm keeps its ε: its statistics are fixed, so the size of what it reads is not free.
    `leaky` lets ReLUs leak: factors pass them as before, but no unit is dead.
    """

    def __init__(self, *, leaky: bool = False) -> None:
        super().__init__()
        self._leaky = leaky

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the function with other constants and types."""
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if self._leaky and name in _LEAKY:
            return _LEAKY[name](args[0], _SLOPE)
        if name in _GUARDED:
            args = tuple(map(_shrunk, args))
            kwargs = {key: _shrunk(value) for key, value in kwargs.items()}
        if args and isinstance(args[0], Tensor) and args[0].dtype is torch.float64:
            if name in _CASTS:
                return args[0]
            args = tuple(map(_widened, args))
            kwargs = {key: _widened(value) for key, value in kwargs.items()}
        return func(*args, **kwargs)


def _shrunk(value: Any) -> Any:
    return value * _SHRINK if isinstance(value, float) and 0 < value <= _LARGEST else value


def _widened(value: Any) -> Any:
    return torch.float64 if isinstance(value, torch.dtype) and value in _NARROW else value
