"""What the networks have in common: checks of their sizes, activations, and heads.

A convolutional network that ends in global average pooling has one of two heads. "linear" averages
over the image, then classifies. "conv" classifies every position with a 1×1 convolution, then
averages, as in "An accurate flatness measure … CNN models". Both have the same number of weights, a
seed draws the same ones for both, and with these both are the same function.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from ...ground.errors import SpiritlevelError, brief

_ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "gelu": nn.GELU, "tanh": nn.Tanh}


def check_sizes(model: str, /, **sizes: int) -> None:
    """Refuse a size that is not a whole number of at least 1; the error names its argument."""
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise SpiritlevelError(
                f"The {name!r} argument of {model} must be a whole number of at least 1. "
                f"Got {brief(size)}. Leave it out for the default."
            )


def several_sizes(model: str, name: str, sizes: int | Sequence[int]) -> tuple[int, ...]:
    """One size or several, checked, as a tuple.

    >>> several_sizes("mlp", "hidden", 64)
    (64,)
    """
    listed = tuple(sizes) if isinstance(sizes, list | tuple) else (sizes,)
    for size in listed:
        check_sizes(model, **{name: size})
    return listed


def check_divides(model: str, part: str, whole: str, **sizes: int) -> None:
    """Refuse two sizes of which the first does not divide the second."""
    if sizes[whole] % sizes[part]:
        raise SpiritlevelError(
            f"The {part!r} argument of {model} must divide {whole!r}. Got {part}={sizes[part]} and "
            f"{whole}={sizes[whole]}. Change one of the two."
        )


def activation_type(model: str, activation: str) -> type[nn.Module]:
    """The module class of an activation; none of them works in place."""
    if activation not in _ACTIVATIONS:
        names = ", ".join(map(repr, _ACTIVATIONS))
        raise SpiritlevelError(
            f"The 'activation' argument of {model} must be one of {names}. Got "
            f"{brief(activation)}. For another activation, write a network of your own and give it "
            "as 'module:factory'."
        )
    return _ACTIVATIONS[activation]


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
