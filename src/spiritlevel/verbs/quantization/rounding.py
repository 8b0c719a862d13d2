"""Rounding of weights to a few bits: symmetric levels, with a scale per tensor, channel or group.

With b bits a weight becomes s·k for a whole number k from −(2ᵇ⁻¹ − 1) to 2ᵇ⁻¹ − 1, so 2 bits have
three levels. The scale s puts the largest weight on the last level, or on a level beyond it where
that makes the squared error smaller.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from ...ground.need import LARGEST, need, need_one_of
from ...records.reading import Plain

Scheme = Literal["per_tensor", "per_channel", "per_group"]
Ranges = Literal["mse", "max"]
SCALE_BYTES = 2  # a scale is stored in half precision
SHRINKS = tuple(1.0 - 0.05 * i for i in range(15))  # of the largest weight: 1, 0.95, …, 0.3


@dataclasses.dataclass(frozen=True)
class Rounding(Plain):
    """How weights are rounded.

    Args:
        scheme: which weights share a scale: all of a tensor, those of an output channel, or
            `group_size` neighbours within a channel.
        ranges: "max" puts the largest weight on the last level, "mse" looks for the smallest
            squared error.
    """

    CALLED: ClassVar = "the rounding"

    scheme: Scheme = "per_channel"
    group_size: int = 128
    ranges: Ranges = "mse"

    def __post_init__(self) -> None:
        need_one_of("scheme", self.scheme, get_args(Scheme), of="quantization")
        need_one_of("ranges", self.ranges, get_args(Ranges), of="quantization")
        need(
            "group_size",
            self.group_size,
            lambda value: type(value) is int and 1 <= value < LARGEST,
            "a whole number of at least 1, below 2**63",
            "Typical: 128.",
            of="quantization",
        )

    def round(self, weight: Tensor, bits: int, *, transposed: bool = False) -> Tensor:
        """The weight with every entry on a level; `transposed` says that channels come last.

        >>> Rounding("per_tensor", ranges="max").round(torch.tensor([[1.0, 0.4], [-3.0, 0.9]]), 3)
        tensor([[ 1.,  0.],
                [-3.,  1.]])
        """
        last = transposed and self.scheme != "per_tensor"
        moved = weight.movedim(-1, 0) if last else weight
        count, size, shared = self._sharing(weight.shape, transposed)
        # padded with zeros where weights that share a scale do not fill it
        rows = F.pad(moved.reshape(count, size), (0, -size % shared)).reshape(-1, shared)
        best = self._nearest(rows, 2 ** (bits - 1) - 1)
        shaped = best.reshape(count, -1)[:, :size].reshape(moved.shape)
        return (shaped.movedim(0, -1) if last else shaped).contiguous()

    def _nearest(self, rows: Tensor, levels: int) -> Tensor:
        """Every entry on a level, with the scale for each row that leaves the smallest error."""
        largest = rows.abs().amax(dim=1, keepdim=True)
        best, least = rows, torch.full_like(largest, math.inf)
        for shrink in (1.0,) if self.ranges == "max" else SHRINKS:
            scale = torch.where(largest > 0, shrink * largest / levels, torch.ones_like(largest))
            tried = (rows / scale).round().clamp(-levels, levels) * scale
            error = (tried - rows).square().sum(dim=1, keepdim=True)
            best = torch.where(error < least, tried, best)
            least = torch.minimum(error, least)
        return best

    def num_bytes(self, shape: torch.Size, bits: int, *, transposed: bool = False) -> int:
        """What the rounded weight takes, with its scales."""
        count, size, shared = self._sharing(shape, transposed)
        return math.ceil(shape.numel() * bits / 8) + SCALE_BYTES * count * math.ceil(size / shared)

    def _sharing(self, shape: torch.Size, transposed: bool) -> tuple[int, int, int]:
        """How many channels there are, of how many weights, and how many of these share a scale."""
        count = shape[-1] if transposed else shape[0]
        if self.scheme == "per_tensor":
            count = 1
        size = shape.numel() // max(count, 1)
        return count, size, self.group_size if self.scheme == "per_group" else max(size, 1)


def check_bits(bits: Any) -> tuple[int, ...]:
    """The widths in order, each once."""
    need(
        "bits",
        bits,
        lambda value: (
            isinstance(value, list | tuple | range)
            and len(value) > 0
            and all(type(b) is int and 2 <= b <= 16 for b in value)
        ),
        "a list of whole numbers from 2 to 16, at least one",
        "Typical: (2, 3, 4, 6, 8).",
        of="quantization",
    )
    return tuple(sorted(set(bits)))
