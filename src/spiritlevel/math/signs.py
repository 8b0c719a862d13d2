"""Random signs that depend only on a seed and a position, not on the order of drawing.

All random probes take their signs from here. A sample keeps its signs however the data is divided
into batches, chunks and processes, and on every device; so does a parameter. The bits are those of
a counter passed through the finalizer of SplitMix64 (Steele, Lea and Flood 2014).

Normal numbers are made of the same bits, for vectors that must be generic. A vector of random signs
can be an eigenvector of a small matrix, or be orthogonal to one; a normal vector is neither, with
probability 1.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

_GOLDEN = -0x61C8864680B583EB  # 2⁶⁴/φ, as a signed number
_FIRST, _SECOND = -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15
_BITS = 64
_RANGE = 1 << _BITS
_CHUNK = 1 << 20  # numbers made at a time: their bits take 8 MiB
_BYTE = 256  # values of a byte
_HALF = 32  # bits of each of the two uniform numbers that make a normal one


def random_signs(
    seed: int, stream: int | Tensor, rows: Tensor, count: int, dtype: torch.dtype
) -> Tensor:
    """±1 of shape (len(rows), count): row i is a function of (seed, stream, rows[i]) alone.

    Each row may have a stream of its own.

    >>> both = random_signs(0, 1, torch.tensor([7, 3]), 5, torch.float64)
    >>> alone = random_signs(0, 1, torch.tensor([3]), 5, torch.float64)
    >>> torch.equal(both[1:], alone), both.abs().unique().tolist()
    (True, [1.0])
    """
    bits = random_bits(seed, stream, rows, 0, 1 + (count - 1) // _BITS)
    bit_numbers = torch.arange(_BITS, device=rows.device)
    odd = (bits[:, :, None] >> bit_numbers) & 1
    return odd.flatten(1)[:, :count].to(dtype).mul_(2).sub_(1)


class PackedSigns:
    """Signs of many tensors from few operators: eight in a byte, and each made when asked for."""

    def __init__(self, sizes: Sequence[int], dtype: torch.dtype, device: torch.device) -> None:
        """`sizes` are the numbers of signs of each tensor."""
        self._starts = list(itertools.accumulate((-(-size // _BITS) for size in sizes), initial=0))
        byte = torch.arange(_BYTE, device=device)
        bits = (byte[:, None] >> torch.arange(8, device=device)) & 1
        self._of_byte = bits.to(dtype).mul_(2).sub_(1)  # shape: (256, 8)

    def drawn(self, seed: int, stream: int, row: int) -> Tensor:
        """The bytes of all tensors, a function of these three alone."""
        rows = torch.full((1,), row, device=self._of_byte.device)
        return random_bits(seed, stream, rows, 0, self._starts[-1])[0].view(torch.uint8)

    def of(self, drawn: Tensor, number: int, shape: torch.Size) -> Tensor:
        """The signs of a tensor in its shape, from what was `drawn` for all.

        >>> packed = PackedSigns([3, 100], torch.float32, torch.device("cpu"))
        >>> signs = packed.of(packed.drawn(0, 1, 2), 1, torch.Size([10, 10]))
        >>> signs.shape, signs.abs().unique().tolist()
        (torch.Size([10, 10]), [1.0])
        """
        first, size = _BITS // 8 * self._starts[number], shape.numel()
        chosen = drawn[first : first + -(-size // 8)].to(torch.int32)
        return self._of_byte.index_select(0, chosen).view(-1)[:size].view(shape)


def random_bits(seed: int, stream: int | Tensor, rows: Tensor, first: int, last: int) -> Tensor:
    """64 random bits for each row and each counter from `first` up to `last`, as int64."""
    start = _mix_number(seed + _GOLDEN)
    if isinstance(stream, Tensor):
        key: int | Tensor = _mix(start + stream + _GOLDEN)
    else:
        key = _mix_number(start + stream + _GOLDEN)
    keys = _mix(key + _GOLDEN * rows.to(torch.int64))
    counters = torch.arange(first + 1, last + 1, device=rows.device)
    return _mix(keys[:, None] + _GOLDEN * counters)


def _mix(x: Tensor) -> Tensor:
    """The finalizer: every bit of the result depends on every bit of x; products wrap around."""
    x = (x ^ _shifted(x, 30)) * _FIRST
    x = (x ^ _shifted(x, 27)) * _SECOND
    return x ^ _shifted(x, 31)


def _mix_number(x: int) -> int:
    """The same of one number, as a signed one: many times faster than with a tensor of it."""
    x %= _RANGE
    x = (x ^ x >> 30) * _FIRST % _RANGE
    x = (x ^ x >> 27) * _SECOND % _RANGE
    x ^= x >> 31
    return x - _RANGE if x >= _RANGE // 2 else x


def _shifted(x: Tensor, places: int) -> Tensor:
    """The bits of x moved down by `places`, without copying the sign bit into the gap."""
    return (x >> places) & ((1 << (_BITS - places)) - 1)


def random_normals(seed: int, stream: int, rows: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """Shape (len(rows), count): row i is a function of (seed, stream, rows[i]) alone.

    Devices may differ in the last digits, since their logarithms and cosines do.

    >>> both = random_normals(0, 1, torch.tensor([7, 3]), 5, torch.float64)
    >>> alone = random_normals(0, 1, torch.tensor([3]), 5, torch.float64)
    >>> torch.equal(both[1:], alone)
    True
    """
    normals = torch.empty(len(rows), count, dtype=dtype, device=rows.device)
    step = max(1, _CHUNK // max(1, len(rows)))
    for first in range(0, count, step):
        bits = random_bits(seed, stream, rows, first, min(first + step, count))
        # in (0, 1), so that the logarithm is finite
        length, angle = (_uniform(bits >> _HALF), _uniform(bits))
        radius = length.log().mul_(-2).sqrt_()
        normals[:, first : first + step] = radius * (2 * math.pi * angle).cos_()
    return normals


def _uniform(bits: Tensor) -> Tensor:
    """The lowest 32 bits as a number between 0 and 1, without the ends."""
    lowest = bits & ((1 << _HALF) - 1)
    return (lowest.double() + 0.5) / (1 << _HALF)
