"""Weight gradients of which only the graph is wanted.

A Hessian-vector product is the derivative of ⟨g, v⟩. It needs to know how the gradient g depends on
the parameters, not its value: while the functions of a loss are deferred, their gradients in
weights that are parameters themselves are placeholders with the right derivatives. That saves one
of the six large products in a penalty on the first layer of a perceptron.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor


@contextlib.contextmanager
def deferred(functions: Sequence[Any]) -> Iterator[None]:
    """During the block these functions of one graph leave out the values of weight gradients."""
    try:
        for function in functions:
            function.deferred = True
        yield
    finally:
        for function in functions:
            function.deferred = False


def may_skip(function: Any, weight: Tensor) -> bool:
    """Whether only the caller of `deferred` will see this weight's gradient."""
    return bool(function.deferred) and weight.is_leaf and not weight._backward_hooks


def stand_in(like: Tensor, shape: torch.Size) -> Tensor:
    """Zeros that take no memory."""
    return like.new_zeros(()).expand(shape)
