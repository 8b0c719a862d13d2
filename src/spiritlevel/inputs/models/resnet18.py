"""ResNet-18 for small images (He et al. 2016, with the CIFAR stem)."""

from __future__ import annotations

from torch import Tensor, nn

from .parts import add_head, check_head, check_sizes


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
