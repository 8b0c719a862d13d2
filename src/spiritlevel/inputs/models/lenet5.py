"""LeNet-5 (LeCun, Bottou, Bengio, Haffner 1998) as it is used today."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from ...ground.errors import SpiritlevelError
from .sizes import check_sizes

_SMALLEST = 12


def lenet5(channels: int = 1, *, classes: int = 10, size: int = 28) -> nn.Sequential:
    """Two 5×5 convolutions with pooling, then 120, 84 and `classes` units; 61,706 parameters.

    `size` is the height and width of the images. Those under 32 get a border of 2 in the first
    convolution, as the 1998 network pads its 28×28 digits to 32×32.

    Departures from 1998: ReLU instead of tanh, max pooling instead of trained averaging, the second
    convolution sees all six maps, a linear output layer.
    """
    check_sizes("lenet5", channels=channels, classes=classes, size=size)
    if size < _SMALLEST:
        raise SpiritlevelError(
            f"The 'size' argument of lenet5 must be at least {_SMALLEST}: nothing is left of a "
            f"smaller image after two 5×5 convolutions with pooling. Got {size}. "
            "For the 8×8 digits use digits_cnn."
        )
    border = 2 if size < 32 else 0
    after_first = (size + 2 * border - 4) // 2
    after_second = (after_first - 4) // 2
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(channels, 6, 5, padding=border),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(6, 16, 5),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
            fc1=nn.Linear(16 * after_second**2, 120),
            relu3=nn.ReLU(),
            fc2=nn.Linear(120, 84),
            relu4=nn.ReLU(),
            head=nn.Linear(84, classes),
        )
    )
