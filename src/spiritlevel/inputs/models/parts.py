"""What the networks have in common: checks of their sizes, activations, and heads.

A convolutional network that ends in global average pooling has one of two heads. "linear" averages
over the image, then classifies. "conv" classifies every position with a 1×1 convolution, then
averages, as in "An accurate flatness measure … CNN models". Both have the same number of weights, a
seed draws the same ones for both, and with these both are the same function.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from ...ground.errors import SpiritlevelError
from ...ground.need import need, one_of

_ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "gelu": nn.GELU, "tanh": nn.Tanh}


def check_sizes(model: str, /, **sizes: int) -> None:
    """Refuse a size that is not a whole number of at least 1; the error names its argument."""
    for name, size in sizes.items():
        wanted, then = "a whole number of at least 1", "Leave it out for the default."
        need(name, size, lambda size: type(size) is int and size >= 1, wanted, then, of=model)


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
    wanted = f"one of {', '.join(map(repr, _ACTIVATIONS))}"
    then = "For another activation, write a network of your own and give it as 'module:factory'."
    need("activation", activation, one_of(_ACTIVATIONS), wanted, then, of=model)
    return _ACTIVATIONS[activation]


def check_head(model: str, head: str) -> None:
    """Refuse anything but "linear" and "conv"."""
    fits, then = one_of(("linear", "conv")), "'linear' is the usual one."
    need("head", head, fits, "'linear' or 'conv'", then, of=model)


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
