"""Run a network as its formulas are meant: without small constants and without narrow numbers.

A normalization divides by √(variance + ε). Without ε the size of what it reads would be free; with
ε it is free up to a small remainder, and that would hide the symmetry from linear algebra. So would
the rounding of a part that the network computes in float32 whatever its weights are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

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
