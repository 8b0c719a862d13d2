"""Blocks of a large matrix product: how it is cut, and in which precision it is added up."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator

import torch
from torch import Tensor

# Numbers in a block of logits. A GPU needs this many to run matrix products at full speed; on a CPU
# a tensor above 32 MiB is handed out page by page each time anew, which costs more than filling it.
GPU_BLOCK, CPU_BLOCK = 1 << 27, 1 << 22
MIN_CLASSES = 16  # the least that a chunk of vocabulary holds, whatever the budget


def block_shape(
    num_tokens: int,
    num_classes: int,
    *,
    budget: int,
    logit_bytes: int,
    token_bytes: int,
    class_bytes: int,
    limit: int,
) -> tuple[int, int]:
    """Tokens and classes of a block: at most `limit` logits, and `budget` bytes if that can be.

    Every block of tokens passes over W once and every chunk of classes over (tokens, d) sums, so
    the two sides stay alike. Chunks are alike, so that compiled code meets one size, and
    multiples of 16, as matrix units want them.

    >>> sizes = {"logit_bytes": 6, "token_bytes": 4096 * 12, "class_bytes": 0}
    >>> block_shape(8192, 128256, budget=2**31, limit=2**27, **sizes)
    (8192, 16032)
    >>> block_shape(8192, 128256, budget=1, limit=2**27, **sizes)
    (1, 16)
    """
    tokens = min(num_tokens, math.isqrt(limit // 2))
    classes = min(num_classes, limit // max(tokens, 1))
    least = min(num_classes, MIN_CLASSES)
    while tokens * classes * logit_bytes + tokens * token_bytes + classes * class_bytes > budget:
        if tokens > 1 and (2 * tokens > classes or classes <= least):
            tokens = math.ceil(tokens / 2)
        elif classes > least:
            classes = max(math.ceil(classes / 2), least)
        else:
            break
    return _even(num_tokens, tokens, 1), _even(num_classes, classes, MIN_CLASSES)


def _even(total: int, part: int, multiple: int) -> int:
    """A part no larger than `part` that cuts `total` evenly, a multiple if it is large enough."""
    if part >= total:
        return max(total, 1)
    multiple = multiple if part >= multiple else 1
    pieces = math.ceil(total / (part - part % multiple))
    return math.ceil(total / (pieces * multiple)) * multiple


def slices(total: int, part: int) -> Iterator[slice]:
    """0…total in pieces; one empty piece where total is 0."""
    return (slice(i, min(i + part, total)) for i in range(0, max(total, 1), part))


def wide_type(*tensors: Tensor) -> torch.dtype:
    """The type that sums have: what the tensors promote to, and float32 at least."""
    types = [tensor.dtype for tensor in tensors]
    return functools.reduce(torch.promote_types, types, torch.float32)


def matmul(left: Tensor, right: Tensor, wide: torch.dtype) -> Tensor:
    """A product in `wide`; half-precision operands are multiplied as they are where that exists."""
    if left.is_cuda and left.dtype == right.dtype != wide and _has_wide_results():
        return torch.mm(left, right, out_dtype=wide)
    return left.to(wide) @ right.to(wide)


@functools.cache
def _has_wide_results() -> bool:
    """Whether mm takes `out_dtype` (torch 2.8 and newer, on CUDA only)."""
    return "dtype" in torch.ops.aten.mm.overloads()
