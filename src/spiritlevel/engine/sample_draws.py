"""What sample probes have given so far, for all samples alike or by groups of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..model.surface import Surface
from .estimate import Estimate, estimates_of_columns
from .sample_groups import LEAST_SAMPLES, SampleGroups, joined
from .sweep.sums import Factors, RowSums, mean_estimate

MOST_KEPT = 1 << 26  # bytes of the values of one probe: with more, all samples get the same


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
        # single values and weights of the first probes, chunk by chunk; None if there are none
        self._kept: list[tuple[Tensor, Tensor]] | None = None

    def new_sums(self) -> RowSums:
        """Sums without values."""
        return RowSums(self._names, self._surface.device, signed=True)

    def keeps(self, num_samples: int) -> bool:
        """Whether to keep the single values of the next probes, from which groups are formed."""
        fits = 8 * len(self._names) * num_samples <= MOST_KEPT
        return not self.parts and num_samples >= LEAST_SAMPLES and fits

    def add(
        self,
        count: int,
        sums: RowSums,
        kept: list[tuple[Tensor, Tensor]] | None,
        neurons: Mapping[str, Tensor],
    ) -> None:
        """Add probes that all samples have had; `kept` are their single values, if they are kept.

        `neurons` are ρ(j) by layer, summed over the samples, one row per probe.
        """
        for row, values in neurons.items():
            self._neurons.setdefault(row, []).append(values)
        self.parts.append((count, sums))
        self.passes += count
        self._kept = kept

    @property
    def can_be_divided(self) -> bool:
        """Whether groups can be formed now; all processes say the same."""
        return self.groups is None and self._kept is not None

    def divide(self, groups: SampleGroups | None) -> None:
        """Form the groups, if they pay: what all samples have so far is then theirs."""
        if groups is None:
            return
        assert self._kept is not None
        count, rows = self.parts[0][0], len(self._names)
        empty = torch.zeros(count, rows, 0, dtype=torch.float64)  # a process may have no data
        values = torch.cat([empty, *[values for values, _ in self._kept]], dim=2)
        weights = torch.cat([empty[0, 0], *[weights for _, weights in self._kept]])
        for group in range(len(groups.sizes)):
            sums, members = self.new_sums(), groups.group_of == group
            of_group = values[:, :, members].to(self._surface.device)
            sums.add(list(of_group), weights[members].to(of_group))
            sums.reduce(self._surface.processes)
            self.by_group.append([(count, sums)])
        self.groups, self._kept = groups, None

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
