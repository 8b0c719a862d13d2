"""What sample probes have given so far, for all samples alike or by groups of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..model.surface import Surface
from .estimate import Estimate, estimates_of_columns
from .sample_groups import SampleGroups, joined
from .sweep.sums import Factors, RowSums, mean_estimate

MOST_KEPT = 1 << 27  # bytes of single values: with more, all samples get the same probes


class SampleDraws:
    """What was drawn of one operator: for all samples alike, and then by groups of them."""

    def __init__(self, names: Sequence[str], surface: Surface) -> None:
        """`names` are those of the rows."""
        self._names, self._surface = names, surface
        self.parts: list[tuple[int, RowSums]] = []  # of all samples, with the number of probes
        self.by_group: list[list[tuple[int, RowSums]]] = []  # the same, once groups were formed
        self.groups: SampleGroups | None = None
        self.passes = 0.0  # what they cost, in passes over the data
        self._neurons: dict[str, list[Tensor]] = {}
        self._kept: list[tuple[Tensor, Tensor]] = []  # single values and weights, chunk by chunk

    def new_sums(self) -> RowSums:
        """Sums without values."""
        return RowSums(self._names, self._surface.device, signed=True)

    def add(
        self,
        count: int,
        sums: RowSums,
        kept: list[tuple[Tensor, Tensor]],
        neurons: Mapping[str, Tensor],
    ) -> None:
        """Add probes that all samples have had; `kept` are their single values, by chunk.

        `neurons` are ρ(j) by layer, summed over the samples, one row per probe.
        """
        for row, values in neurons.items():
            self._neurons.setdefault(row, []).append(values)
        self.parts.append((count, sums))
        self.passes += count
        few = sum(values.nbytes for values, _ in kept) <= MOST_KEPT
        self._kept = kept if few and len(self.parts) == 1 else []

    def divide(self, groups: SampleGroups | None) -> None:
        """Form the groups, if they pay: what all samples have so far is then theirs."""
        if self.groups is not None or groups is None or len(self.parts) != 1 or not self._kept:
            return
        values = torch.cat([values for values, _ in self._kept], dim=2)
        weights = torch.cat([weights for _, weights in self._kept])
        for group in range(len(groups.sizes)):
            sums, members = self.new_sums(), groups.group_of == group
            of_group = values[:, :, members].to(self._surface.device)
            sums.add(list(of_group), weights[members].to(of_group))
            sums.reduce(self._surface.processes)
            self.by_group.append([(self.parts[0][0], sums)])
        self.groups, self._kept = groups, []

    def count_of(self, group: int) -> int:
        """Probes that each sample of a group has had."""
        return sum(count for count, _ in self.by_group[group])

    def add_groups(self, counts: list[int], sums: list[RowSums]) -> None:
        """Add probes of which each group has had another number."""
        assert self.groups is not None
        for group, (count, total) in enumerate(zip(counts, sums, strict=True)):
            if count:
                self.by_group[group].append((count, total))
        self.passes += self.groups.cost(counts)

    def neurons(self, row: str) -> list[Estimate]:
        """ρ(j) of every neuron of a layer."""
        values = torch.cat(self._neurons[row]) / self.parts[0][1].between.total_weight
        return estimates_of_columns(values.tolist())

    def estimate(self, factors: Factors) -> Estimate:
        """Σ over rows of factor × value."""
        first = mean_estimate([(count, s.estimate(factors, count)) for count, s in self.parts])
        if self.groups is None:
            return first
        whole = self.parts[0][1].between.total_weight
        estimates = []
        for parts in self.by_group:
            weight = parts[0][1].between.total_weight
            if weight:
                of_parts = [(count, sums.estimate(factors, count)) for count, sums in parts]
                estimates.append((weight / whole, mean_estimate(of_parts)))
        return dataclasses.replace(joined(estimates), data_variance=first.data_variance)
