"""Gaussian noise on the inputs, and wrong labels for a share of the samples."""

from __future__ import annotations

import torch
from torch import Tensor

from ...errors import SpiritlevelError
from ...need import need, number, one_of
from .checks import check_labels, check_share, count_of


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
