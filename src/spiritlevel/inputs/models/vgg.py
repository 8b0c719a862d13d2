"""VGG networks for 32×32 images (Simonyan, Zisserman 2015, as they are used on CIFAR).

The small one is that of Table 6 of "Sharpness can be manipulated and misleading for
generalization".
"""

from __future__ import annotations

from torch import nn

from ...ground.need import need, one_of
from .parts import add_head, check_head, check_sizes

# Convolutions of each stage, and their channels in units of the first stage's.
_STAGES = ((2, 1), (2, 2), (3, 4), (3, 8), (3, 8))


def vgg16(
    channels: int = 3,
    *,
    classes: int = 10,
    width: int = 64,
    batch_norm: bool = True,
    head: str = "linear",
) -> nn.Sequential:
    """Thirteen 3×3 convolutions in five stages, each then halved, and one layer as the head.

    Images must be at least 32×32. `head="conv"` classifies every position, then averages: the same
    function with the same weights. 14,728,266 parameters at the defaults.

    Departures from 2015: a single layer instead of three as the head, no dropout, BatchNorm unless
    `batch_norm=False`. The weights start as He et al. (2015) have them; without BatchNorm nothing
    would come through thirteen layers otherwise.
    """
    check_sizes("vgg16", channels=channels, classes=classes, width=width)
    check_head("vgg16", head)
    flags, then = one_of((True, False)), "Leave it out for BatchNorm."
    need("batch_norm", batch_norm, flags, "True or False", then, of="vgg16")
    network = nn.Sequential()
    for stage, (depth, factor) in enumerate(_STAGES, start=1):
        for i in range(1, depth + 1):
            conv = nn.Conv2d(channels, factor * width, 3, padding=1)
            nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
            nn.init.zeros_(conv.bias)  # type: ignore[arg-type]
            network.add_module(f"conv{stage}_{i}", conv)
            if batch_norm:
                network.add_module(f"bn{stage}_{i}", nn.BatchNorm2d(factor * width))
            network.add_module(f"relu{stage}_{i}", nn.ReLU())
            channels = factor * width
        network.add_module(f"pool{stage}", nn.MaxPool2d(2))
    add_head(network, channels, classes, kind=head)
    return network


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
