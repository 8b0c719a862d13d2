"""DenseNet-121 for small images (Huang et al. 2017, with the CIFAR stem)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ...ground.errors import SpiritlevelError
from .parts import add_head, check_head, check_sizes, several_sizes


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
