"""A multilayer perceptron."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from .._core import SpiritlevelError
from ._sizes import check_sizes

_ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "gelu": nn.GELU, "tanh": nn.Tanh}


def mlp(
    inputs: int = 64,
    *,
    hidden: int | Sequence[int] = (64, 64),
    outputs: int = 10,
    activation: str = "relu",
) -> nn.Sequential:
    """Linear layers `fc1`, `fc2`, …, `head`, activations between them; the input is flattened.

    `hidden` is one width or several; `hidden=()` is softmax or linear regression. Only "relu" is
    piecewise linear: with the others the inner layers' Hessian is not their Gauss-Newton matrix.

    >>> list(dict(mlp(4, hidden=(3,), outputs=2).named_children()))
    ['flatten', 'fc1', 'relu1', 'head']
    """
    if activation not in _ACTIVATIONS:
        known = ", ".join(map(repr, _ACTIVATIONS))
        raise SpiritlevelError(
            f"The 'activation' argument of mlp must be one of {known}. Got {activation!r}. "
            "Another activation needs a network of your own, given as 'module:factory'."
        )
    check_sizes("mlp", inputs=inputs, outputs=outputs)
    network = nn.Sequential()
    network.add_module("flatten", nn.Flatten())
    for i, width in enumerate([hidden] if isinstance(hidden, int) else hidden, start=1):
        check_sizes("mlp", hidden=width)
        network.add_module(f"fc{i}", nn.Linear(inputs, width))
        network.add_module(f"{activation}{i}", _ACTIVATIONS[activation]())
        inputs = width
    network.add_module("head", nn.Linear(inputs, outputs))
    return network
