"""Normal numbers that depend only on a seed and a position, as the signs in `signs.py` do.

They are for vectors that must be generic. A vector of random signs can be an eigenvector of a small
matrix, or be orthogonal to one; a normal vector is neither, with probability 1.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .signs import random_bits

_CHUNK = 1 << 20  # numbers made at a time: their bits take 8 MiB
_HALF = 32  # bits of each of the two uniform numbers that make a normal one


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
