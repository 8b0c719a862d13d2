"""Columns are pulled back through the network to its layers, one by one or several at once.

Several go in one backward where a GPU would wait for Python between single ones.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from ...ground.errors import is_out_of_memory
from ...math.curvature import SignedColumn, scaled_to_one
from ...model.autograd_graph import deepest
from ...model.layer_hooks import LayerUse
from ...model.surface import Surface
from ...records.measurements import Cost
from ..uses import pull
from .listeners import AbstractListener, ChunkRows

DEVICES = ("cuda",)  # where starting an operation may take longer than the operation
MOST_BYTES = 256 << 20  # of gradients at all layers; more keep a GPU busy one column at a time
SHARE = 8  # of the memory that a chunk may take: at most one part of this many

Root = Tensor | GradientEdge  # what a column is a cotangent of
Gradients = Sequence[Tensor | None]
Scaled = tuple[Tensor, Tensor]  # a column of size 1, and what to multiply squares by


def columns_per_backward(surface: Surface, num_bytes: int, num_columns: int, memory: int) -> int:
    """How many columns to pull at once if the gradients of one take `num_bytes` at all layers."""
    if surface.device.type not in DEVICES or num_bytes == 0:
        return 1
    return max(1, min(num_columns, min(MOST_BYTES, memory // SHARE) // num_bytes))


def pull_together(
    surface: Surface, root: Root, columns: Tensor, edges: list[GradientEdge], num_samples: int
) -> Gradients | None:
    """Gradients at all edges, each with a first dimension for the columns; None if that fails.

    An operation without a rule for it would be run in a loop, which is no faster than ours.
    """
    try:
        with _no_loops():
            gradients = torch.autograd.grad(
                [root],  # type: ignore[arg-type]
                edges,
                [columns],
                retain_graph=True,
                allow_unused=True,
                is_grads_batched=True,
            )
    except (RuntimeError, NotImplementedError) as error:
        if is_out_of_memory(error):
            raise
        return None
    surface.cost += Cost(backwards=num_samples * len(columns))
    return gradients


def agrees(
    surface: Surface,
    root: Root,
    column: Tensor,
    edges: list[GradientEdge],
    together: Gradients,
    num_samples: int,
) -> bool:
    """Whether the first of several columns has the gradients that it has alone.

    Some of torch's rules for several at once are wrong.
    """
    alone = surface.pull(root, column, edges, num_samples)
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


class Listening(NamedTuple):
    """A listener, and the edge at which the gradient for it arrives."""

    edge: GradientEdge
    listener: AbstractListener
    use: LayerUse
    place: str
    num_bytes: int  # of a gradient

    def mute(self, muted: bool) -> None:
        """Let gradients that pass go unheard."""
        setattr(self.use, self.place, None if muted else self.listener)


class Pulling:
    """Pulls the columns of one chunk."""

    def __init__(
        self,
        surface: Surface,
        root: Root,
        listening: list[Listening],
        uses: list[LayerUse],
        rows: ChunkRows,
        *,
        at_once: int,
        after_column: Callable[[], None],
        graph: Hashable,
    ) -> None:
        """`at_once` columns go together; `graph` tells networks apart in which that was tried."""
        self.surface, self.root, self.uses, self.rows = surface, root, uses, rows
        self.listening, self.at_once, self.after_column = listening, at_once, after_column
        self.edges = [each.edge for each in listening]
        self._deep = deepest(root, self.edges) if listening else []
        self._graph = graph

    def below(self, root: Root, number: int) -> Pulling:
        """Pulls columns of another tensor of the same graph to the same listeners."""
        return Pulling(
            self.surface,
            root,
            self.listening,
            self.uses,
            self.rows,
            at_once=self.at_once,
            after_column=self.after_column,
            graph=(self._graph, number),
        )

    def pull(self, columns: Iterable[SignedColumn], *, keep: bool) -> list[Scaled]:
        """Pull every column of the outputs; returns them, scaled, if they are to be kept.

        As many columns as outputs, each as large as the outputs, do not fit in memory.
        """
        assert isinstance(self.root, Tensor)
        shape, dtype = self.root.shape, self.root.dtype
        done: list[Scaled] = []

        def scaled() -> Iterator[Scaled]:
            for column, sign in columns:
                unit, size = scaled_to_one(column)
                ready = unit.to(dtype).reshape(shape), sign * size.squeeze(1).square()
                if keep:
                    done.append(ready)
                yield ready

        self.pull_scaled(scaled())
        return done

    def pull_scaled(self, columns: Iterable[Scaled]) -> None:
        """Pull columns of size 1, each in the shape of the root and with its factors."""
        waiting: list[Scaled] = []
        for column in columns:
            waiting.append(column)
            if len(waiting) == self.at_once:
                self._pull(waiting)
                waiting = []
        self._pull(waiting)

    def _pull(self, columns: list[Scaled]) -> None:
        together = self._together([unit for unit, _ in columns])
        for number, (unit, self.rows.factor) in enumerate(columns):
            if together is not None:
                for each, gradient in zip(self.listening, together, strict=True):
                    if gradient is not None:
                        each.listener(gradient[number])
            elif self._deep:
                pull(self.surface, self.root, unit, self._deep, self.uses, self.rows.num_samples)
            self.after_column()

    def _together(self, units: list[Tensor]) -> Gradients | None:
        """The gradients of several columns at every listener; None if they go one by one."""
        known, surface, count = self.surface.findings, self.surface, self.rows.num_samples
        key = ("columns at once", surface.dtype, surface.numbers.arithmetic, self._graph)
        if len(units) < 2 or not self.listening or known.get(key) is False:
            return None
        for each in self.listening:
            each.mute(True)
        try:
            found = pull_together(surface, self.root, torch.stack(units), self.edges, count)
            if known.get(key) is None:
                right = found is not None and agrees(
                    surface, self.root, units[0], self.edges, found, count
                )
                known.put(key, right)
        finally:
            for each in self.listening:
                each.mute(False)
        return found if known.get(key) else None
