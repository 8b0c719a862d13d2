"""Several columns in one backward, where a GPU would wait for Python between single ones."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from ...ground.errors import is_out_of_memory
from ...model.surface import Surface
from ...records.measurements import Cost

DEVICES = ("cuda",)  # where starting an operation may take longer than the operation
MOST_BYTES = 256 << 20  # of gradients at all layers; more keep a GPU busy one column at a time
SHARE = 8  # of the memory that a chunk may take: at most one part of this many

Gradients = Sequence[Tensor | None]


def columns_per_backward(surface: Surface, num_bytes: int, num_columns: int, memory: int) -> int:
    """How many columns to pull at once if the gradients of one take `num_bytes` at all layers."""
    if surface.device.type not in DEVICES or num_bytes == 0:
        return 1
    return max(1, min(num_columns, min(MOST_BYTES, memory // SHARE) // num_bytes))


def pull_together(
    surface: Surface, outputs: Tensor, columns: Tensor, edges: list[GradientEdge]
) -> Gradients | None:
    """Gradients at all edges, each with a first dimension for the columns; None if that fails.

    An operation without a rule for it would be run in a loop, which is no faster than ours.
    """
    try:
        with _no_loops():
            gradients = torch.autograd.grad(
                outputs,
                edges,
                columns,
                retain_graph=True,
                allow_unused=True,
                is_grads_batched=True,
            )
    except (RuntimeError, NotImplementedError) as error:
        if is_out_of_memory(error):
            raise
        return None
    surface.cost += Cost(backwards=len(outputs) * len(columns))
    return gradients


def agrees(
    surface: Surface,
    outputs: Tensor,
    column: Tensor,
    edges: list[GradientEdge],
    together: Gradients,
) -> bool:
    """Whether the first of several columns has the gradients that it has alone.

    Some of torch's rules for several at once are wrong.
    """
    alone = surface.pull(outputs, column, edges)
    for one, several in zip(alone, together, strict=True):
        if one is None or several is None:
            if one is not several:
                return False
            continue
        # sums in another order; a wrong rule is off by its own size
        gap = (several[0] - one).norm()
        if not bool(gap <= 1e4 * torch.finfo(one.dtype).eps * one.norm()):
            return False
    return True


@contextlib.contextmanager
def _no_loops() -> Iterator[None]:
    functorch: Any = torch._C._functorch
    before = functorch._is_vmap_fallback_enabled()
    functorch._set_vmap_fallback_enabled(False)
    try:
        yield
    finally:
        functorch._set_vmap_fallback_enabled(before)
