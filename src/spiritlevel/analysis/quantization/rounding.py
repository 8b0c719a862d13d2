"""Rounding of weights to a few bits: symmetric levels, with a scale per tensor, channel or group.

With b bits a weight becomes s·k for a whole number k from −(2ᵇ⁻¹ − 1) to 2ᵇ⁻¹ − 1, so 2 bits have
three levels. The scale s puts the largest weight on the last level, or on a level beyond it where
that makes the squared error smaller.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from ...errors import suggestion
from ...need import LARGEST, need, one_of

Scheme = Literal["per_tensor", "per_channel", "per_group"]
Ranges = Literal["mse", "max"]
SCALE_BYTES = 2  # a scale is stored in half precision
SHRINKS = tuple(1.0 - 0.05 * i for i in range(15))  # of the largest weight: 1, 0.95, …, 0.3


@dataclasses.dataclass(frozen=True)
class Rounding:
    """How weights are rounded.

    Args:
        scheme: which weights share a scale: all of a tensor, those of an output channel, or
            `group_size` neighbours within a channel.
        ranges: "max" puts the largest weight on the last level, "mse" looks for the smallest
            squared error.
    """

    scheme: Scheme = "per_channel"
    group_size: int = 128
    ranges: Ranges = "mse"

    def __post_init__(self) -> None:
        for name, value, known in (
            ("scheme", self.scheme, get_args(Scheme)),
            ("ranges", self.ranges, get_args(Ranges)),
        ):
            wanted, then = f"one of {', '.join(known)}", suggestion(value, known)[1:]
            need(name, value, one_of(known), wanted, then, of="quantization")
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
        rows = self._rows(weight, transposed)
        levels = 2 ** (bits - 1) - 1
        largest = rows.abs().amax(dim=1, keepdim=True)
        shrinks = (1.0,) if self.ranges == "max" else SHRINKS
        best, least = rows, torch.full_like(largest, math.inf)
        for shrink in shrinks:
            scale = torch.where(largest > 0, shrink * largest / levels, torch.ones_like(largest))
            tried = (rows / scale).round().clamp(-levels, levels) * scale
            error = (tried - rows).square().sum(dim=1, keepdim=True)
            best = torch.where(error < least, tried, best)
            least = torch.minimum(error, least)
        return self._back(best, weight, transposed)

    def num_bytes(self, shape: torch.Size, bits: int, *, transposed: bool = False) -> int:
        """What the rounded weight takes, with its scales."""
        channels = shape[-1] if transposed else shape[0]
        per_channel = shape.numel() // max(channels, 1)
        groups = {
            "per_tensor": 1,
            "per_channel": channels,
            "per_group": channels * math.ceil(per_channel / self.group_size),
        }
        return math.ceil(shape.numel() * bits / 8) + SCALE_BYTES * groups[self.scheme]

    def settings(self) -> dict[str, Any]:
        """In plain types."""
        return dataclasses.asdict(self)

    def _rows(self, weight: Tensor, transposed: bool) -> Tensor:
        """(scales, weights that share a scale); padded with zeros where groups do not fit."""
        if self.scheme == "per_tensor":
            return weight.reshape(1, -1)
        rows = (weight.movedim(-1, 0) if transposed else weight).flatten(1)
        if self.scheme == "per_channel":
            return rows
        return F.pad(rows, (0, -rows.shape[1] % self.group_size)).reshape(-1, self.group_size)

    def _back(self, rows: Tensor, weight: Tensor, transposed: bool) -> Tensor:
        if self.scheme == "per_tensor":
            return rows.reshape(weight.shape)
        moved = weight.movedim(-1, 0) if transposed else weight
        if self.scheme == "per_group":
            rows = rows.reshape(len(moved), -1)[:, : moved.shape[1:].numel()]
        shaped = rows.reshape(moved.shape)
        return (shaped.movedim(0, -1) if transposed else shaped).contiguous()


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
