"""A user's loss as it is called here: its constants fit the outputs, and nothing in it changes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn


class LossCall:
    """A loss function or module that can be called with outputs of any floating-point type.

    Outputs come in float64 here, whatever the model's type. Parameters and buffers of a loss module
    are constants and follow the outputs' type and device. A module is called through a copy, so
    that counters, running means and the like do not move.
    """

    def __init__(self, function: Callable[..., Any], *, reduction: str | None = None) -> None:
        """`reduction` replaces the module's."""
        self._function = function
        self._reduction = reduction

    def __call__(self, outputs: Tensor, targets: Tensor) -> Any:
        """What the loss returns."""
        return self.prepared(outputs)(outputs, targets)

    def prepared(self, outputs: Tensor) -> Callable[[Tensor, Tensor], Any]:
        """The loss for outputs of this type and device, to be called more than once."""
        function = self._function
        if isinstance(function, nn.Module) and not isinstance(function, torch.jit.ScriptModule):
            function = _constant_copy(function, outputs, {})
            if self._reduction is not None:
                function.reduction = self._reduction  # type: ignore[assignment]

        def call(z: Tensor, y: Tensor) -> Any:
            return function(z, y.to(z.dtype) if y.is_floating_point() else y)

        return call


def _constant_copy(
    module: nn.Module, outputs: Tensor, copies: dict[nn.Module, nn.Module]
) -> nn.Module:
    """A copy with tensors of its own that need no gradient; all other objects are shared."""
    if module in copies:
        return copies[module]
    copied = copies[module] = copy.copy(module)
    forward = vars(module).get("forward")
    if isinstance(forward, MethodType) and forward.__self__ is module:
        copied.forward = MethodType(forward.__func__, copied)
    vars(copied)["_parameters"] = {
        name: _constant(tensor, outputs) for name, tensor in module._parameters.items()
    }
    vars(copied)["_buffers"] = {
        name: _constant(tensor, outputs) for name, tensor in module._buffers.items()
    }
    vars(copied)["_modules"] = {
        name: None if child is None else _constant_copy(child, outputs, copies)
        for name, child in module._modules.items()
    }
    return copied


def _constant(tensor: Tensor | None, outputs: Tensor) -> Tensor | None:
    if tensor is None:
        return None
    dtype = outputs.dtype if tensor.is_floating_point() else tensor.dtype
    return tensor.detach().to(outputs.device, dtype, copy=True)
