"""VGG-small, Table 6 of "Sharpness can be manipulated and misleading for generalization"."""

from __future__ import annotations

from torch import nn

from .heads import add_head, check_head
from .sizes import check_sizes


def vgg_small(
    channels: int = 3, *, classes: int = 10, width: int = 64, head: str = "linear"
) -> nn.Sequential:
    """Four 3×3 convolutions of width, 2, 4 and 8 × width, each then halved; a head without bias.

    Images must be at least 16×16. The paper's `head="linear"` sees the averages of the image's four
    quarters: 1,571,456 parameters at its width of 64. `head="conv"` classifies every position with
    a 1×1 convolution, then averages, as if the four had the same weights: 1,556,096 parameters.
    """
    check_sizes("vgg_small", channels=channels, classes=classes, width=width)
    check_head("vgg_small", head)
    network = nn.Sequential()
    for i in range(1, 5):
        network.add_module(f"conv{i}", nn.Conv2d(channels, width, 3, padding=1))
        network.add_module(f"relu{i}", nn.ReLU())
        network.add_module(f"pool{i}", nn.MaxPool2d(2))
        channels, width = width, 2 * width
    if head == "conv":
        add_head(network, channels, classes, kind=head, bias=False)
        return network
    network.add_module("pool", nn.AdaptiveAvgPool2d(2))
    network.add_module("flatten", nn.Flatten())
    network.add_module("head", nn.Linear(4 * channels, classes, bias=False))
    return network
