"""The smallest networks: a multilayer perceptron and two convolutional networks for digits."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from ...ground.need import need
from .parts import activation_type, check_sizes, several_sizes

_SMALLEST = 12  # height and width of an image for LeNet-5


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


def digits_cnn(classes: int = 10, *, width: int = 16) -> nn.Sequential:
    """Two 3×3 convolutions, pooling, and a head that is a 3×3 convolution averaged over the image.

    For the embedded 8×8 digits; 7,690 parameters at the defaults. The averaged convolution is the
    head of "An accurate flatness measure … CNN models", whose curvature has a closed form.
    """
    check_sizes("digits_cnn", classes=classes, width=width)
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(1, width, 3, padding=1),
            relu1=nn.ReLU(),
            conv2=nn.Conv2d(width, 2 * width, 3, padding=1),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
            head=nn.Conv2d(2 * width, classes, 3, padding=1),
            average=nn.AdaptiveAvgPool2d(1),
            flatten=nn.Flatten(),
        )
    )


def lenet5(channels: int = 1, *, classes: int = 10, size: int = 28) -> nn.Sequential:
    """Two 5×5 convolutions with pooling, then 120, 84 and `classes` units; 61,706 parameters.

    After LeCun, Bottou, Bengio and Haffner (1998), as it is used today.

    `size` is the height and width of the images. Those under 32 get a border of 2 in the first
    convolution, as the 1998 network pads its 28×28 digits to 32×32.

    Departures from 1998: ReLU instead of tanh, max pooling instead of trained averaging, the second
    convolution sees all six maps, a linear output layer.
    """
    check_sizes("lenet5", channels=channels, classes=classes, size=size)
    need(
        "size",
        size,
        lambda size: size >= _SMALLEST,
        f"at least {_SMALLEST}: nothing is left of a smaller image after two 5×5 convolutions with "
        "pooling",
        "For the 8×8 digits use digits_cnn.",
        of="lenet5",
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
