"""Augmentations of a batch: crop and flip, mixup.

Each is made once with its settings, then called with a batch and a generator:

    augment = crop_flip(padding=4)
    x, y = augment(x, y, generator)

All random numbers come from that generator: a run is determined by its seed, and can be continued
exactly where it stopped if the generator's state was saved.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from ...errors import SpiritlevelError
from ...need import need, number, whole
from .checks import check_images, check_labels


class Augmentation(Protocol):
    """Changes a batch at random; neither tensor is changed in place."""

    def __call__(self, x: Tensor, y: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return changed inputs and their targets."""


def crop_flip(padding: int = 4, *, flip: bool = True) -> Augmentation:
    """Each image moved by up to `padding` pixels either way, and mirrored in half the cases.

    The image gets a border of zeros of that width, of which a window of its old size is cut out,
    all (2 · padding + 1)² equally likely. `flip=False` for digits and letters.
    """
    need(
        *("padding", padding, whole(least=0), "an integer of at least 0"),
        "For 32×32 images 4 is usual.",
        of="crop_flip",
    )

    def augment(x: Tensor, y: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        check_images(x, function="crop_flip")
        device = generator.device
        n, height, width = len(x), *x.shape[2:]
        moves = torch.randint(2 * padding + 1, (2, n), generator=generator, device=device)
        mirrored = torch.rand(n, generator=generator, device=device) < (0.5 if flip else 0.0)
        top, left = moves.to(x.device)
        rows = top[:, None] + torch.arange(height, device=x.device)
        columns = torch.arange(width, device=x.device).expand(n, -1)
        columns = left[:, None] + torch.where(
            mirrored.to(x.device)[:, None], columns.flip(1), columns
        )
        padded = F.pad(x, (padding,) * 4)
        each = torch.arange(n, device=x.device)
        # Advanced indices around a slice put the channels last.
        cut = padded[each[:, None, None], :, rows[:, :, None], columns[:, None, :]]
        return cut.permute(0, 3, 1, 2).contiguous(), y

    return augment


def mixup(alpha: float = 1.0, *, num_classes: int) -> Augmentation:
    """Each input mixed with another of the batch, and their labels in the same proportion.

    x' = λ x + (1 - λ) x[order], with one λ ~ Beta(alpha, alpha) a batch (Zhang et al. 2018). The
    targets become probabilities (N, num_classes), which cross_entropy takes as they are.
    """
    need(
        *("alpha", alpha, number(above=0), "a finite number above 0"),
        "Usual is 0.1 to 1; without mixing leave mixup out.",
        of="mixup",
    )

    def augment(x: Tensor, y: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        check_labels(y, num_classes=num_classes, function="mixup")
        if not x.is_floating_point() or len(x) != len(y):
            raise SpiritlevelError(
                "The inputs given to mixup must be floats, as many as there are labels. Got shape "
                f"{tuple(x.shape)} of {x.dtype} and {len(y)} labels. Token ids cannot be mixed."
            )
        share = _beta(alpha, generator)
        order = torch.randperm(len(x), generator=generator, device=generator.device).to(x.device)
        targets = F.one_hot(y.long(), num_classes).to(x.dtype)
        return (
            share * x + (1 - share) * x[order],
            share * targets + (1 - share) * targets[order.to(y.device)],
        )

    return augment


def _beta(alpha: float, generator: torch.Generator) -> float:
    """One draw of Beta(alpha, alpha), as one of two Gamma variables over their sum."""
    shape = torch.full((2,), float(alpha), dtype=torch.float64, device=generator.device)
    first, second = torch._standard_gamma(shape, generator=generator).tolist()
    if first == second:  # both underflowed: alpha is so small that λ is 0 or 1
        return float(torch.randint(2, (), generator=generator, device=generator.device))
    return first / (first + second)
