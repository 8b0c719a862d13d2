"""Data changed on purpose: noise on the inputs, wrong labels, and patches that give labels away.

Label leakage of paper 001, section 5.3, is a small patch in a corner that gives the class away. The
control group has a patch in the same place that gives nothing away: a difference between the two
groups is then due to the leak and not to the patch as such.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ...errors import SpiritlevelError
from ...need import need, number, one_of
from .checks import check_images, check_labels, check_share, count_of

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


def input_noise(x: Tensor, std: float, generator: torch.Generator) -> Tensor:
    """The inputs with independent Gaussian noise of that standard deviation, not clipped.

    Paper 001 states the *variance* in its section 6 (0.5 is std=0.707) and σ in its Figure 9.
    """
    need(
        *("std", std, number(least=0), "a finite number of at least 0"),
        "For a variance v give v ** 0.5.",
        of="input_noise",
    )
    if not x.is_floating_point():
        raise SpiritlevelError(
            f"The inputs given to input_noise must be floats. Got {x.dtype}. Token ids have no "
            "noise of this kind; images: x.float() / 255."
        )
    noise = torch.randn(x.shape, generator=generator, device=generator.device, dtype=x.dtype)
    return x + std * noise.to(x.device)


KINDS = ("replace", "shuffle")


def label_noise(
    y: Tensor,
    share: float,
    num_classes: int,
    generator: torch.Generator,
    *,
    kind: str = "replace",
) -> Tensor:
    """Labels of which exactly this share (to the nearest sample) was drawn at random.

    "replace" gives each drawn sample one of the *other* classes, all equally likely: every drawn
    label is wrong. "shuffle" permutes the drawn labels among themselves, as N in Table 2 of paper
    001: the class counts stay, and about one drawn label in num_classes stays right by chance.

    >>> y = torch.zeros(10, dtype=torch.long)
    >>> int((label_noise(y, 0.3, 10, torch.Generator().manual_seed(0)) != y).sum())
    3
    """
    check_share(share, name="share", function="label_noise")
    need(
        *("kind", kind, one_of(KINDS), "'replace' or 'shuffle'"),
        "'replace' makes every drawn label wrong, 'shuffle' keeps the class counts.",
        of="label_noise",
    )
    need(
        *("num_classes", num_classes, lambda v: v >= 2, "at least 2"),
        "With one class no label can be wrong.",
        of="label_noise",
    )
    check_labels(y, num_classes=num_classes, function="label_noise")
    device = generator.device
    drawn = torch.randperm(len(y), generator=generator, device=device)[: count_of(share, len(y))]
    if kind == "replace":
        steps = torch.randint(1, num_classes, drawn.shape, generator=generator, device=device)
        drawn = drawn.to(y.device)
        new = (y[drawn] + steps.to(y)) % num_classes
    else:
        order = torch.randperm(len(drawn), generator=generator, device=device)
        source, drawn = drawn[order].to(y.device), drawn.to(y.device)
        new = y[source]
    noisy = y.clone()
    noisy[drawn] = new
    return noisy
