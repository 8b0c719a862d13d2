"""Networks of paper 001 with the activations of every layer normalized sample by sample.

A study's `norm_control` replaces norm layers by such a normalization and constrains the weights;
a network without norm layers gets its normalization here. Name one in a study as
`spiritlevel.experiments.normalized_networks:vgg_small`.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from spiritlevel.inputs.models import build
from spiritlevel.training.norm_control import MeanVarianceNorm


def vgg_small(channels: int = 3, *, classes: int = 10, width: int = 64) -> nn.Sequential:
    """VGG-small with mean 0 and variance 1 of each sample in front of every ReLU.

    Before the ReLU, a mean of 0 lets about half of the units through, as the paper says.
    """
    plain: Any = build("vgg_small", channels=channels, classes=classes, width=width)
    network = nn.Sequential()
    for name, layer in plain.named_children():
        if isinstance(layer, nn.ReLU):
            network.add_module(name.replace("relu", "norm"), MeanVarianceNorm())
        network.add_module(name, layer)
    return network
