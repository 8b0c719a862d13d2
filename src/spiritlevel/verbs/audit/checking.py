"""Whether the outputs of a moved copy are what they should be, on all the data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, SequentialSampler

from ...measures.setup import Setup
from ...model.arithmetic import full_precision
from ...model.batches import BatchLocation
from ...model.distributed import Processes
from ...model.surface import Surface
from ...records.measurements import Cost

View = Callable[[Tensor], Tensor]
KEPT_BYTES = 1 << 28  # of the original's outputs, which would take a pass for every copy


class OutputCheck:
    """Compares outputs of copies with the original's, which are computed once where that is sure.

    That is where the data come in the same order every time.
    """

    def __init__(self, setup: Setup, model: nn.Module, data: Iterable[Any], seen: View) -> None:
        """`seen` is what the loss sees of outputs."""
        self.setup, self.model, self.data, self.seen = setup, model, data, seen
        self.cost = Cost()
        is_loader = isinstance(data, DataLoader) and isinstance(data.sampler, SequentialSampler)
        self._keeps = is_loader or isinstance(data, list | tuple)
        self._kept: list[Tensor] = []

    def deviation(self, moved: nn.Module, growth: float) -> float:
        """How far outputs on all data are from `growth` times the original's, beside the largest.

        As far as the loss sees them.
        """
        processes = Processes(join=self.setup.distributed)
        original, copied = (self._surface(each, processes) for each in (self.model, moved))
        apart = largest = 0.0
        with processes.together(), original.preserved(), full_precision(), torch.no_grad():
            for before, after in self._pairs(original, copied):
                if before.numel():
                    largest = max(largest, float((growth * before).abs().max()))
                    off = float((after - growth * before).abs().max())
                    apart = max(apart, math.inf if math.isnan(off) else off)
        self.cost += original.cost + copied.cost
        both = processes.gather((apart, largest))
        apart, largest = (max(parts) for parts in zip(*both, strict=True))
        return apart / largest if largest else apart

    def _surface(self, model: nn.Module, processes: Processes) -> Surface:
        loss, forward = self.setup.loss, self.setup.forward
        return Surface(model, self.data, loss=loss, forward=forward, processes=processes)

    def _pairs(self, original: Surface, copied: Surface) -> Iterator[tuple[Tensor, Tensor]]:
        """What the loss sees of the original's outputs and of the copy's, batch by batch."""
        known, kept = self._kept, list[Tensor]()
        for where, batch in original.batches():
            if known:
                before = known[where.batch].to(original.device)
            else:
                before = self._outputs(original, batch, where)
                kept.append(before.cpu())
            yield before, self._outputs(copied, batch, where)
        if self._keeps and not known and sum(each.nbytes for each in kept) <= KEPT_BYTES:
            self._kept = kept

    def _outputs(self, surface: Surface, batch: Any, where: BatchLocation) -> Tensor:
        outputs, _ = surface.outputs(batch, where=where, may_overflow=True)
        return self.seen(outputs.double())
