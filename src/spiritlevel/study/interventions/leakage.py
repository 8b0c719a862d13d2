"""Label leakage of paper 001, section 5.3: a small patch in a corner that gives the class away.

The control group has a patch in the same place that gives nothing away: a difference between the
two groups is then due to the leak and not to the patch as such.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ...errors import SpiritlevelError
from ...need import need, one_of
from .checks import check_images, check_labels

CORNERS = ("bottom-left", "bottom-right", "top-left", "top-right")


def class_patches(images: Tensor, labels: Tensor, num_classes: int, *, size: int = 8) -> Tensor:
    """One patch per class, (num_classes, channels, size, size): its first image, made smaller.

    The paper takes MNIST digits: `class_patches(*load("mnist"), 10)`.
    """
    check_images(images, function="class_patches")
    check_labels(labels, num_classes=num_classes, function="class_patches")
    first = []
    for label in range(num_classes):
        members = (labels == label).nonzero()
        if not len(members):
            raise SpiritlevelError(
                f"The 'labels' argument of class_patches must have every class from 0 to "
                f"{num_classes - 1}. There is no {label}. Give more images, or fewer classes."
            )
        first.append(images[members[0, 0]])
    small = F.interpolate(torch.stack(first), size=(size, size), mode="bilinear", antialias=True)
    return small.clamp_(0, 1)


def leakage_patch(x: Tensor, y: Tensor, patches: Tensor, corner: str = "bottom-left") -> Tensor:
    """Images with the patch of their own class pasted into a corner.

    `patches` has one per class; a patch with one channel is put on all channels of `x`.
    """
    _check(x, patches, corner, function="leakage_patch")
    check_labels(y, num_classes=len(patches), function="leakage_patch")
    if len(x) != len(y):
        raise SpiritlevelError(
            "The arguments 'x' and 'y' of leakage_patch must be equally long. "
            f"Got {len(x)} images and {len(y)} labels. Give each image its label."
        )
    return _paste(x, patches.to(x)[y.to(x.device)], corner)


def control_patch(
    x: Tensor, patches: Tensor, generator: torch.Generator, corner: str = "bottom-left"
) -> Tensor:
    """Images with the patch of a class drawn anew for each: the control group.

    Call it for each batch with the same generator, so that no image keeps its patch.
    """
    _check(x, patches, corner, function="control_patch")
    drawn = torch.randint(len(patches), (len(x),), generator=generator, device=generator.device)
    return _paste(x, patches.to(x)[drawn.to(x.device)], corner)


def _paste(x: Tensor, patches: Tensor, corner: str) -> Tensor:
    height, width = patches.shape[2:]
    rows = slice(None, height) if corner.startswith("top") else slice(-height, None)
    columns = slice(None, width) if corner.endswith("left") else slice(-width, None)
    pasted = x.clone()
    pasted[:, :, rows, columns] = patches
    return pasted


def _check(x: Tensor, patches: Tensor, corner: str, *, function: str) -> None:
    need("corner", corner, one_of(CORNERS), f"one of {', '.join(CORNERS)}", of=function)
    check_images(x, function=function)
    channels, height, width = x.shape[1:]
    fits = (
        patches.ndim == 4
        and patches.shape[1] in (1, channels)
        and 0 < patches.shape[2] <= height
        and 0 < patches.shape[3] <= width
    )
    if not fits:
        raise SpiritlevelError(
            f"The 'patches' argument of {function} must be (classes, 1 or {channels}, at most "
            f"{height}, at most {width}) to fit the images. Got shape {tuple(patches.shape)}. "
            "class_patches makes them."
        )
