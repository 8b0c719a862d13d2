"""Blocks of a large matrix product: how large each one is, and in which precision it is summed."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator

import torch
from torch import Tensor

# Numbers in a block of logits. A GPU needs this many to run matrix products at full speed. On a CPU
# a tensor above 32 MiB is allocated page by page each time, which costs more than filling it.
GPU_BLOCK, CPU_BLOCK = 1 << 27, 1 << 22
MIN_CLASSES = 16  # in a chunk of the vocabulary, whatever the budget


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
    """Tokens and classes of a block: at most `limit` logits, and `budget` bytes where possible.

    Every block of tokens reads W once, and every chunk of classes reads (tokens, d) sums, so the
    two sides are kept similar. Chunks have equal sizes, so that code is compiled for one size, and
    are multiples of 16, which matrix units are fastest with.

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
    """At most `part`, such that `total` is cut into equal pieces; a multiple if large enough."""
    if part >= total:
        return max(total, 1)
    multiple = multiple if part >= multiple else 1
    pieces = math.ceil(total / (part - part % multiple))
    return math.ceil(total / (pieces * multiple)) * multiple


def slices(total: int, part: int) -> Iterator[slice]:
    """0…total in pieces of `part`; one empty piece if total is 0."""
    return (slice(i, min(i + part, total)) for i in range(0, max(total, 1), part))


def wide_type(*tensors: Tensor) -> torch.dtype:
    """The dtype to sum in: what the tensors promote to, and at least float32."""
    types = [tensor.dtype for tensor in tensors]
    return functools.reduce(torch.promote_types, types, torch.float32)


def matmul(left: Tensor, right: Tensor, wide: torch.dtype) -> Tensor:
    """The product in `wide`; half-precision operands are not converted if torch allows it."""
    if left.is_cuda and left.dtype == right.dtype != wide and _has_wide_results():
        return torch.mm(left, right, out_dtype=wide)
    return left.to(wide) @ right.to(wide)


@functools.cache
def _has_wide_results() -> bool:
    """Whether mm takes `out_dtype` (torch 2.8 and newer, on CUDA only)."""
    return "dtype" in torch.ops.aten.mm.overloads()
