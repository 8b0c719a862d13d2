"""Reference networks, and networks of a user's own.

Each name here is a function that builds a network, such as `resnet18(width=16)`; `build` takes the
name, `build("resnet18", width=16)`.
"""

from __future__ import annotations

from .convolutional import densenet121 as densenet121
from .convolutional import resnet18 as resnet18
from .convolutional import vgg16 as vgg16
from .convolutional import vgg_small as vgg_small
from .registry import build as build
from .registry import names as names
from .registry import register_model as register_model
from .small import digits_cnn as digits_cnn
from .small import lenet5 as lenet5
from .small import mlp as mlp
from .transformers import text_transformer as text_transformer
from .transformers import vit_small as vit_small
