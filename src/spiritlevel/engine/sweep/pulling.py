"""Columns are pulled back through the network to its layers, one by one or several at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from ...math.curvature import SignedColumn, scaled_to_one
from ...model.autograd_graph import deepest
from ...model.layer_hooks import LayerUse
from ...model.surface import Surface
from ..uses import pull
from .batched import Gradients, agrees, pull_together
from .listeners import AbstractListener, ChunkRows

Scaled = tuple[Tensor, Tensor]  # a column of size 1, and what to multiply squares by


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
        outputs: Tensor,
        listening: list[Listening],
        uses: list[LayerUse],
        rows: ChunkRows,
        *,
        at_once: int,
        after_column: Callable[[], None],
        graph: int,
    ) -> None:
        """`at_once` columns go together; `graph` tells networks apart in which that was tried."""
        self.surface, self.outputs, self.uses, self.rows = surface, outputs, uses, rows
        self.listening, self.at_once, self.after_column = listening, at_once, after_column
        self.edges = [each.edge for each in listening]
        self._deep = deepest(outputs, self.edges) if listening else []
        self._key = ("columns at once", surface.dtype, surface.numbers.arithmetic, graph)

    def pull(self, columns: Iterable[SignedColumn], *, keep: bool) -> list[Scaled]:
        """Pull every column; returns them, scaled, with their factors, if they are to be kept.

        As many columns as outputs, each as large as the outputs, do not fit in memory.
        """
        done: list[Scaled] = []
        waiting: list[Scaled] = []
        for column, sign in columns:
            unit, size = scaled_to_one(column)
            unit = unit.to(self.outputs.dtype).reshape(self.outputs.shape)
            waiting.append((unit, sign * size.squeeze(1).square()))
            if len(waiting) == self.at_once:
                self._pull(waiting)
                done += waiting if keep else []
                waiting = []
        self._pull(waiting)
        return done + waiting if keep else []

    def _pull(self, columns: list[Scaled]) -> None:
        together = self._together([unit for unit, _ in columns])
        for number, (unit, self.rows.factor) in enumerate(columns):
            if together is not None:
                for each, gradient in zip(self.listening, together, strict=True):
                    if gradient is not None:
                        each.listener(gradient[number])
            elif self._deep:
                pull(self.surface, self.outputs, unit, self._deep, self.uses)
            self.after_column()

    def _together(self, units: list[Tensor]) -> Gradients | None:
        """The gradients of several columns at every listener; None if they go one by one."""
        known, surface = self.surface.findings, self.surface
        if len(units) < 2 or not self.listening or known.get(self._key) is False:
            return None
        for each in self.listening:
            each.mute(True)
        try:
            found = pull_together(surface, self.outputs, torch.stack(units), self.edges)
            if known.get(self._key) is None:
                right = found is not None and agrees(
                    surface, self.outputs, units[0], self.edges, found
                )
                known.put(self._key, right)
        finally:
            for each in self.listening:
                each.mute(False)
        return found if known.get(self._key) else None
