"""Reference networks, and networks of a user's own.

Each name here is a function that builds a network, such as `resnet18(width=16)`; `build` takes the
name, `build("resnet18", width=16)`.
"""

from __future__ import annotations

from .densenet121 import densenet121
from .registry import build, names
from .registry import register_model as register_model
from .resnet18 import resnet18
from .small import digits_cnn, lenet5, mlp
from .transformers import text_transformer, vit_small
from .vgg import vgg16, vgg_small

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
