"""The passes of a workspace with a sweep: those that count, and what those before them took."""

from __future__ import annotations

import torch
from torch import Tensor

from ..records.measurements import Cost
from .data_pass import PassResult
from .sweep.sums import SweepSums


class SweepPasses:
    """The first pass, and those with further output probes."""

    def __init__(self, first: PassResult) -> None:
        self.first = first
        self.more: list[PassResult] = []
        self.drawn = 0  # probes of passes that were replaced
        self.dropped = 0  # backward passes of theirs, leading columns included
        self._cost_of_dropped = Cost()

    def replace(self, first: PassResult) -> None:
        """A pass that takes the place of all others."""
        self._cost_of_dropped = self.cost
        self.dropped += sum(each.leading + (each.num_probes or 0) for each in self.sums)
        self.drawn += self.num_probes
        self.first, self.more = first, []

    @property
    def sums(self) -> list[SweepSums]:
        """What each pass summed."""
        return [each.sweep for each in (self.first, *self.more)]

    def sums_of(self, *, whole: bool) -> list[SweepSums]:
        """The same as a `whole`: with elementwise functions, if the Hessian has no other part."""
        completed = self.first.whole
        return [completed] if whole and completed is not None else self.sums

    @property
    def leading(self) -> int:
        """Columns that each pass takes exactly."""
        return self.first.sweep.leading

    @property
    def num_probes(self) -> int:
        """Output probes of all passes."""
        return sum(each.num_probes or 0 for each in self.sums)

    @property
    def cost(self) -> Cost:
        """The work of all passes, also of those that were replaced."""
        return sum((each.cost for each in (self.first, *self.more)), self._cost_of_dropped)

    def neurons(self, layer: str) -> Tensor:
        """ρ(j), as a whole where that is possible; one row per probe, a single row if exact."""
        return torch.cat([each.neuron_values(layer) for each in self.sums_of(whole=True)])

    def text(self, num_columns: int) -> str:
        """How the GGN was computed, for the report."""
        if self.first.sweep.num_probes is None:
            return "the GGN exactly"
        exactly = f"{self.leading} leading column{'s' * (self.leading > 1)} exactly and "
        drawn = f"{self.num_probes} output probes for {num_columns} columns"
        return exactly * (self.leading > 0) + drawn
