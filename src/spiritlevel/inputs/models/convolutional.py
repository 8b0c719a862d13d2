"""VGG, ResNet-18 and DenseNet-121 for small images, as they are used on CIFAR.

Of Simonyan and Zisserman 2015, He et al. 2016 and Huang et al. 2017, the last two with the CIFAR
stem. The small VGG is that of Table 6 of "Sharpness can be manipulated and misleading for
generalization".
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ...ground.errors import SpiritlevelError
from ...ground.need import need, one_of
from .parts import add_head, check_head, check_sizes, several_sizes

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


def resnet18(
    channels: int = 3, *, classes: int = 10, width: int = 64, head: str = "linear"
) -> nn.Sequential:
    """A 3×3 stem without pooling, four stages of two blocks of width, 2, 4 and 8 × width, a head.

    `head="linear"` averages over the image, then classifies. `head="conv"` classifies every
    position with a 1×1 convolution, then averages, as in "An accurate flatness measure … CNN
    models". With the same weights both are the same function.

    11,173,962 parameters at the defaults.
    """
    check_sizes("resnet18", channels=channels, classes=classes, width=width)
    check_head("resnet18", head)
    network = nn.Sequential()
    network.add_module("conv1", nn.Conv2d(channels, width, 3, padding=1, bias=False))
    network.add_module("bn1", nn.BatchNorm2d(width))
    network.add_module("relu1", nn.ReLU())
    inputs = width
    for stage in range(4):
        outputs, stride = width * 2**stage, 1 if stage == 0 else 2
        blocks = nn.Sequential(
            BasicBlock(inputs, outputs, stride=stride), BasicBlock(outputs, outputs, stride=1)
        )
        network.add_module(f"layer{stage + 1}", blocks)
        inputs = outputs
    add_head(network, inputs, classes, kind=head)
    return network


class BasicBlock(nn.Module):
    """Two 3×3 convolutions with BatchNorm beside a shortcut, which is 1×1 where shapes differ."""

    def __init__(self, inputs: int, outputs: int, *, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        # Not in place, and two of them: a hook on a layer must find its output as it was.
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut.add_module(
                "conv", nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)
            )
            self.shortcut.add_module("bn", nn.BatchNorm2d(outputs))
        self.relu2 = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """The rectified sum of the block's output and its shortcut."""
        out = self.relu1(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out)) + self.shortcut(x)
        rectified: Tensor = self.relu2(out)
        return rectified


def densenet121(
    channels: int = 3,
    *,
    classes: int = 10,
    growth: int = 32,
    blocks: int | Sequence[int] = (6, 12, 24, 16),
    head: str = "linear",
) -> nn.Sequential:
    """A 3×3 stem without pooling, dense blocks with transitions that halve between them, a head.

    `blocks` are the layers of each dense block; every layer adds `growth` channels. Each block
    after the first halves height and width once more. `head="conv"` classifies every position, then
    averages: the same function with the same weights. 6,956,298 parameters at the defaults.

    >>> narrow = densenet121(growth=4, blocks=(2, 2))
    >>> [name for name, _ in narrow.named_children()][:4]
    ['conv1', 'block1', 'transition1', 'block2']
    """
    check_sizes("densenet121", channels=channels, classes=classes, growth=growth)
    check_head("densenet121", head)
    depths = several_sizes("densenet121", "blocks", blocks)
    if not depths:
        raise SpiritlevelError(
            "The 'blocks' argument of densenet121 must have at least one entry, the layers of a "
            "dense block. Got (). Leave it out for the default."
        )
    network = nn.Sequential()
    inputs = 2 * growth
    network.add_module("conv1", _conv(channels, inputs, 3))
    for i, depth in enumerate(depths, start=1):
        block = nn.Sequential()
        for j in range(1, depth + 1):
            block.add_module(f"layer{j}", DenseLayer(inputs, growth))
            inputs += growth
        network.add_module(f"block{i}", block)
        if i < len(depths):
            network.add_module(f"transition{i}", _transition(inputs, inputs // 2))
            inputs //= 2
    network.add_module("bn", nn.BatchNorm2d(inputs))
    network.add_module("relu", nn.ReLU())
    add_head(network, inputs, classes, kind=head)
    return network


class DenseLayer(nn.Module):
    """A 1×1 and a 3×3 convolution, each after BatchNorm; what comes out is added as channels."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        # Not in place, and two of them: a hook on a layer must find its output as it was.
        self.relu1 = nn.ReLU()
        self.conv1 = _conv(inputs, 4 * growth, 1)
        self.bn2 = nn.BatchNorm2d(4 * growth)
        self.relu2 = nn.ReLU()
        self.conv2 = _conv(4 * growth, growth, 3)

    def forward(self, x: Tensor) -> Tensor:
        """The input's channels, followed by the new ones."""
        out = self.conv1(self.relu1(self.bn1(x)))
        out = self.conv2(self.relu2(self.bn2(out)))
        return torch.cat([x, out], dim=1)


def _transition(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        OrderedDict(
            bn=nn.BatchNorm2d(inputs),
            relu=nn.ReLU(),
            conv=_conv(inputs, outputs, 1),
            pool=nn.AvgPool2d(2),
        )
    )


def _conv(inputs: int, outputs: int, kernel: int) -> nn.Conv2d:
    conv = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(conv.weight)  # as the authors start it
    return conv
