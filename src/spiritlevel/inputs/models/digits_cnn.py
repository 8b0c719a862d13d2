"""A small convolutional network for the embedded 8×8 digits."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from .sizes import check_sizes


def digits_cnn(classes: int = 10, *, width: int = 16) -> nn.Sequential:
    """Two 3×3 convolutions, pooling, and a head that is a 3×3 convolution averaged over the image.

    The averaged convolution is the head of "An accurate flatness measure … CNN models", whose
    curvature has a closed form. 7,690 parameters at the defaults.
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
