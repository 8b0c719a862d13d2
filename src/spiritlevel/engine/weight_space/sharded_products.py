"""Products with the Hessian of a model whose weights are divided among processes.

Each process moves its own part of the weights, and FSDP gathers them layer by layer, as in
training. Gradients come back in parts too, so vectors, products and sums of them are never whole.
A difference is one of the gradient over all data: a step takes two passes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ...ground.errors import SpiritlevelError
from ...model import batches as _batches
from ...model.arithmetic import full_precision
from ...model.batches import BatchLocation
from ...model.shards import Shards
from ...model.surface import Surface
from ...records.measurements import Cost
from ..memory import VectorMemory
from .chunk_products import Images, images_of
from .differences import Differences, Parts, enough_in
from .products import AbstractProducts, Request


class ShardedProducts(AbstractProducts):
    """Products by differences of gradients, in parts."""

    def __init__(self, surface: Surface, shards: Shards, memory: VectorMemory) -> None:
        super().__init__(surface, "difference", memory)
        self._shards = shards
        self._known: dict[tuple[str, ...], Differences] = {}
        self._passes: int | None = None  # batches of the process that has most

    @contextlib.contextmanager
    def keeping_graph(self) -> Iterator[None]:
        """There is none to keep."""
        yield

    @property
    def sought(self) -> float:
        """The relative error at which a product is good enough."""
        return enough_in(self.surface.dtype)

    def images(self, requests: Sequence[Request]) -> list[Images]:
        """The products over the data of all processes, and what they may be off."""
        if any(request.operator != "hessian" for request in requests):
            raise SpiritlevelError(
                "The Gauss–Newton matrix of a model that is divided by fully_shard cannot be "
                "multiplied in parts. Pass products='reverse', for which the model is gathered."
            )
        with self.surface.processes.together(), self._shards.kept():
            found = [self._multiplied(request) for request in requests]
        self.keep_error(found)
        return found

    def _multiplied(self, request: Request) -> Images:
        space = request.space
        start = {name: self._shards.parts[name].clone() for name in space.names}
        differences = self._known.setdefault(space.names, Differences())
        rows = []
        for vector in request.vectors:
            along = {name: v.to(start[name].dtype) for name, v in space.split(vector).items()}
            rows.append(images_of(space, differences.along(self._gradient, start, along)))
        return Images(*(torch.stack(part) for part in zip(*rows, strict=True)))

    def _gradient(self, at: Parts) -> Parts:
        """This process's part of the gradient of the mean loss where the weights are `at`."""
        surface, shards = self.surface, self._shards
        shards.place(at)
        shards.forget_gradients()
        total = torch.zeros((), dtype=torch.float64, device=surface.device)
        with full_precision(), torch.enable_grad():
            for where, batch, counts in self._in_step():
                outputs, targets = surface.outputs(batch, where=where)
                loss = surface.loss.values(outputs.double(), targets).sum()
                (loss if counts else loss * 0.0).backward()
                if counts:
                    surface.cost += Cost(backwards=len(outputs))
                    total += surface.loss.weights(outputs.detach(), targets).double().sum()
                del outputs, loss
        surface.check_last_batch()
        surface.processes.sum_(total)
        found = shards.take_gradients(surface.processes)
        return {name: found[name] / total.to(found[name].dtype) for name in at}

    def _in_step(self) -> Iterator[tuple[BatchLocation, Any, bool]]:
        """Batches, as many in all processes: the last ones may not count, as they have no more."""
        surface = self.surface
        if self._passes is None:
            mine = sum(1 for _ in surface.batches())
            self._passes = max(surface.processes.gather(mine))
        left, done = self._passes, 0
        for where, batch in surface.batches():
            yield where, batch, True
            left -= 1
            done += _batches.num_samples(batch)
            surface.report_progress(done)
        for _ in range(left):
            yield BatchLocation(0), surface.first_samples(1), False
