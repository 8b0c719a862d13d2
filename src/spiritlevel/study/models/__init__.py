"""Reference networks, and the way to a user's own.

A name here is the function that builds the network: `mlp()`, `resnet18(width=16)`, or by name,
`build("resnet18", width=16)`.
"""

from __future__ import annotations

from .densenet121 import densenet121
from .digits_cnn import digits_cnn
from .lenet5 import lenet5
from .mlp import mlp
from .registry import build, names
from .registry import register_model as register_model
from .resnet18 import resnet18
from .text_transformer import text_transformer
from .vgg16 import vgg16
from .vgg_small import vgg_small
from .vit_small import vit_small

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
