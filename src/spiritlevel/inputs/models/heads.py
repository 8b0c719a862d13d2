"""The two heads of a convolutional network that ends in global average pooling.

"linear" averages over the image, then classifies. "conv" classifies every position with a 1×1
convolution, then averages, as in "An accurate flatness measure … CNN models". Both have the same
number of weights, a seed draws the same ones for both, and with these both are the same function.
"""

from __future__ import annotations

from torch import nn

from ...ground.errors import SpiritlevelError, brief


def check_head(model: str, head: str) -> None:
    """Refuse anything but "linear" and "conv"."""
    if head not in ("linear", "conv"):
        raise SpiritlevelError(
            f"The 'head' argument of {model} must be 'linear' or 'conv'. Got {brief(head)}. "
            "'linear' is the usual one."
        )


def add_head(
    network: nn.Sequential, inputs: int, classes: int, *, kind: str, bias: bool = True
) -> None:
    """Add the head to a network that gives feature maps with `inputs` channels."""
    if kind == "conv":
        network.add_module("head", nn.Conv2d(inputs, classes, 1, bias=bias))
    network.add_module("average", nn.AdaptiveAvgPool2d(1))
    network.add_module("flatten", nn.Flatten())
    if kind == "linear":
        network.add_module("head", nn.Linear(inputs, classes, bias=bias))
