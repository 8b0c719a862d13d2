"""64-bit hashes of tensors, computed where the tensors lie.

A hash is a sum of the bits, taken as integers and each multiplied by its own random odd number,
modulo 2⁶⁴. Integer sums are exact, so the order and the device of the summation do not matter.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

BLOCK = 1 << 16  # integers that share one set of factors
AT_ONCE = 1 << 22  # integers per multiplication: 32 MiB at most in addition to the data
_WIDTHS = (torch.int64, torch.int32, torch.int16, torch.uint8)


def hash_rows(rows: Tensor, salt: int) -> Tensor:
    """One hash for each row of a matrix, shape (rows,); not yet scrambled."""
    numbers = as_integers(rows)
    parts = numbers.split(BLOCK, dim=1) if numbers.shape[1] > BLOCK else (numbers,)
    hashes = [
        _weighted(part, _factors(salt + block, part.shape[1], rows.device))
        for block, part in enumerate(parts)
    ]
    return functools.reduce(torch.add, hashes)


def _weighted(numbers: Tensor, factors: Tensor) -> Tensor:
    """The sum of each row, every number multiplied by its factor."""
    if numbers.dtype == factors.dtype and numbers.device.type == "cpu":
        return numbers.mv(factors)  # without an intermediate result; only CPUs have it
    if numbers.numel() <= AT_ONCE:
        return (numbers * factors).sum(dim=1)
    parts = numbers.split(AT_ONCE // numbers.shape[1])
    return torch.cat([(part * factors).sum(dim=1) for part in parts])


def hash_tensor(tensor: Tensor) -> Tensor:
    """One hash of all values in their order, a tensor without dimensions on the same device."""
    return hash_equals([tensor])[0]


def hash_equals(tensors: Sequence[Tensor]) -> Tensor:
    """One hash for each of some tensors of the same shape, type and device, all at once."""
    rows = [plain(tensor).reshape(1, -1) for tensor in tensors]
    numbers = as_integers(rows[0] if len(rows) == 1 else torch.cat(rows))
    whole = numbers.shape[1] // BLOCK * BLOCK
    hashes = hash_rows(numbers[:, whole:], 0)[:, None]
    if whole:
        blocks = numbers[:, :whole].reshape(-1, BLOCK)
        hashes = torch.cat([hash_rows(blocks, 0).view(len(rows), -1), hashes], dim=1)
    # the place of a block counts, too
    return scramble(hashes + torch.arange(hashes.shape[1], device=hashes.device)).sum(dim=1)


def scramble(hashes: Tensor) -> Tensor:
    """A permutation of the 64-bit numbers; sums of it tell apart what plain sums would not.

    A plain sum of hashes, which are linear in the bits, is the same if two samples swap a value.
    """
    return hashes * (2 * hashes + 1)


def as_integers(rows: Tensor) -> Tensor:
    """The bits of a matrix as integers, the widest kind that fits into a row."""
    if not rows.numel():
        return torch.zeros(rows.shape, dtype=torch.int64, device=rows.device)
    rows = rows.contiguous()
    size = rows.shape[1] * rows.element_size()
    width = next(kind for kind in _WIDTHS if size % kind.itemsize == 0)
    if rows.storage_offset() * rows.element_size() % width.itemsize:
        rows = rows.clone()  # a view of wider numbers must start at a multiple of their size
    return rows.view(width)


def plain(tensor: Tensor) -> Tensor:
    """The values as an ordinary tensor without a graph."""
    tensor = tensor.detach()
    if tensor.is_nested:
        tensor = tensor.to_padded_tensor(0.0)
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.resolve_neg()


@functools.lru_cache(maxsize=64)
def _factors(salt: int, count: int, device: torch.device) -> Tensor:
    generator = torch.Generator().manual_seed(salt)
    ends = torch.iinfo(torch.int64)
    factors = torch.randint(ends.min, ends.max, (count,), generator=generator, device="cpu")
    return (factors | 1).to(device)
