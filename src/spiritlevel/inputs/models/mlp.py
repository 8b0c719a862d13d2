"""A multilayer perceptron with layers of any number and width."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from .activations import activation_type
from .sizes import check_sizes, several_sizes


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
    activate = activation_type("mlp", activation)
    check_sizes("mlp", inputs=inputs, outputs=outputs)
    network = nn.Sequential()
    network.add_module("flatten", nn.Flatten())
    for i, width in enumerate(several_sizes("mlp", "hidden", hidden), start=1):
        network.add_module(f"fc{i}", nn.Linear(inputs, width))
        network.add_module(f"{activation}{i}", activate())
        inputs = width
    network.add_module("head", nn.Linear(inputs, outputs))
    return network
