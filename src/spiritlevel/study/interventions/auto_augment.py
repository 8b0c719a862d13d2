"""AutoAugment (Cubuk et al. 2019): for each image one of 25 pairs of operations, found by search.

kornia has an AutoAugment, but one that takes a single pair for the whole batch, draws from the
global generator, and differs from the published operations (brightness is added instead of
multiplied, contrast has no mean, saturation is that of HSV, shears reach 54 degrees, moves go one
way only). So the policy and what is simple are here; kornia does the filters and histograms.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from ...errors import SpiritlevelError, require
from ...need import need, one_of
from .augmentation import Augmentation
from .checks import check_images

FILL = 0.5  # where a move uncovers pixels; the authors fill with the data's mean
_FARTHEST = 150 / 331  # of the width, at level 10
_GREY = (0.299, 0.587, 0.114)  # of ITU-R 601, as in PIL

# Operation, probability and level of 10, twice: the authors' policy for CIFAR-10.
_CIFAR10 = """
invert 0.1 -, contrast 0.2 6
rotate 0.7 2, translate_x 0.3 9
sharpness 0.8 1, sharpness 0.9 3
shear_y 0.5 8, translate_y 0.7 9
auto_contrast 0.5 -, equalize 0.9 -
shear_y 0.2 7, posterize 0.3 7
color 0.4 3, brightness 0.6 7
sharpness 0.3 9, brightness 0.7 9
equalize 0.6 -, equalize 0.5 -
contrast 0.6 7, sharpness 0.6 5
color 0.7 7, translate_x 0.5 8
equalize 0.3 -, auto_contrast 0.4 -
translate_y 0.4 3, sharpness 0.2 6
brightness 0.9 6, color 0.2 8
solarize 0.5 2, invert 0.0 -
equalize 0.2 -, auto_contrast 0.6 -
equalize 0.2 -, equalize 0.6 -
color 0.9 9, equalize 0.6 -
auto_contrast 0.8 -, solarize 0.2 8
brightness 0.1 3, color 0.7 0
solarize 0.4 5, auto_contrast 0.9 -
translate_y 0.9 9, translate_y 0.7 9
auto_contrast 0.9 -, solarize 0.8 3
equalize 0.8 -, invert 0.1 -
translate_y 0.7 9, auto_contrast 0.9 -
"""
POLICIES = {"cifar10": _CIFAR10}
ImageOperation = Callable[
    [Tensor, float, Tensor], Tensor
]  # images, level, signs for those that move


def auto_augment(policy: str = "cifar10") -> Augmentation:
    """For each image one pair of operations drawn from the policy, each done with its probability.

    Images are RGB in [0, 1] and stay so. Moves, shears and turns go either way, as in the authors'
    code. Usually comes after `crop_flip`.
    """
    known = one_of(POLICIES)
    need("policy", policy, known, f"one of {', '.join(POLICIES)}", of="auto_augment")
    by_name = operations()
    pairs = parse_policy(POLICIES[policy])

    def augment(x: Tensor, y: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        check_images(x, function="auto_augment")
        if x.shape[1] != 3:
            raise SpiritlevelError(
                f"The images given to auto_augment must be RGB. Got {x.shape[1]} channels. "
                "Grey ones: x.expand(-1, 3, -1, -1)."
            )
        device = generator.device
        # Who is changed is found out on the CPU: else it would wait for the GPU fifty times.
        chosen = torch.randint(len(pairs), (len(x),), generator=generator, device=device).cpu()
        chances = torch.rand(2, len(x), generator=generator, device=device).cpu()
        signs = torch.randint(2, (2, len(x)), generator=generator, device=device).to(x) * 2 - 1
        x = x.clone()
        for number, pair in enumerate(pairs):
            for place, (name, probability, level) in enumerate(pair):
                done = (chosen == number) & (chances[place] < probability)
                which = done.nonzero().squeeze(1)
                if len(which):
                    which = which.to(x.device)
                    x[which] = by_name[name](x[which], level, signs[place][which]).clamp(0, 1)
        return x, y

    return augment


def parse_policy(text: str) -> list[list[tuple[str, float, float]]]:
    """Pairs of (operation, probability, level); an operation without a level has 0."""
    steps = [[step.split() for step in line.split(",")] for line in text.strip().splitlines()]
    return [
        [
            (name, float(chance), 0.0 if level == "-" else float(level))
            for name, chance, level in pair
        ]
        for pair in steps
    ]


def operations() -> dict[str, ImageOperation]:
    """The operations of AutoAugment; levels run from 0 to 10 over the range of the paper."""
    enhance = require("kornia.enhance", what="AutoAugment", extra="augment")
    return {
        "shear_x": lambda x, v, s: _shear_x(x, 0.03 * v * s),
        "shear_y": lambda x, v, s: _shear_x(x.mT, 0.03 * v * s).mT,
        "translate_x": lambda x, v, s: _warp(x, right=v / 10 * _FARTHEST * s),
        "translate_y": lambda x, v, s: _warp(x.mT, right=v / 10 * _FARTHEST * s).mT,
        "rotate": lambda x, v, s: _rotate(x, math.radians(3 * v) * s),
        "auto_contrast": lambda x, v, s: _auto_contrast(x),
        "invert": lambda x, v, s: 1 - x,
        "equalize": lambda x, v, s: enhance.equalize(x),
        "solarize": lambda x, v, s: torch.where(255 * x < 256 * (1 - v / 10), x, 1 - x),
        "posterize": lambda x, v, s: enhance.posterize(x, 8 - round(4 * v / 10)),
        "contrast": lambda x, v, s: _blend(_grey(x).mean((1, 2, 3), keepdim=True), x, v),
        "color": lambda x, v, s: _blend(_grey(x), x, v),
        "brightness": lambda x, v, s: _blend(torch.zeros_like(x), x, v),
        "sharpness": lambda x, v, s: enhance.sharpness(x, _factor(v)),
    }


def _factor(level: float) -> float:
    """0.1 at level 0, 1.9 at level 10: 1 leaves an image as it is."""
    return 0.1 + 0.18 * level


def _blend(dull: Tensor, x: Tensor, level: float) -> Tensor:
    return dull + _factor(level) * (x - dull)


def _grey(x: Tensor) -> Tensor:
    return (x * x.new_tensor(_GREY).view(3, 1, 1)).sum(1, keepdim=True)


def _auto_contrast(x: Tensor) -> Tensor:
    low, high = x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
    return torch.where(high > low, (x - low) / torch.where(high > low, high - low, 1.0), x)


def _shear_x(x: Tensor, slope: Tensor) -> Tensor:
    """Each row moved by `slope` times its distance from the top."""
    return _warp(x, slope_x=slope, right=slope / 2 * (x.shape[2] / x.shape[3]))


def _rotate(x: Tensor, angle: Tensor) -> Tensor:
    cos, sin = angle.cos(), angle.sin()
    return _warp(x, scale=cos, slope_x=sin, slope_y=-sin)


def _warp(
    x: Tensor,
    *,
    scale: Tensor | float = 1.0,
    slope_x: Tensor | float = 0.0,
    slope_y: Tensor | float = 0.0,
    right: Tensor | float = 0.0,
) -> Tensor:
    """From the centre, (u, v) takes (scale·u + slope_x·v + right·width, slope_y·u + scale·v).

    The nearest pixel is taken, and FILL outside the image.
    """
    ratio = x.shape[2] / x.shape[3]  # the grid runs from -1 to 1 either way, pixels are square
    entries = (scale, slope_x * ratio, 2 * right, slope_y / ratio, scale, 0.0)
    columns = [torch.as_tensor(entry).to(x).expand(len(x)) for entry in entries]
    matrices = torch.stack(columns, dim=1).view(-1, 2, 3)
    grid = F.affine_grid(matrices, list(x.shape), align_corners=False)
    # Outside the image grid_sample gives 0: shifted, so that 0 means FILL.
    return F.grid_sample(x - FILL, grid, mode="nearest", align_corners=False) + FILL
