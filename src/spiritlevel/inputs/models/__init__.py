"""Reference networks, and networks of a user's own.

Each name here is a function that builds a network, such as `resnet18(width=16)`; `build` takes the
name, `build("resnet18", width=16)`.
"""

from __future__ import annotations

from .convolutional import densenet121, resnet18, vgg16, vgg_small
from .registry import build, names
from .registry import register_model as register_model
from .small import digits_cnn, lenet5, mlp
from .transformers import text_transformer, vit_small

__all__ = [
    "build",
    "densenet121",
    "digits_cnn",
    "lenet5",
    "mlp",
    "names",
    "resnet18",
    "text_transformer",
    "vgg16",
    "vgg_small",
    "vit_small",
]
