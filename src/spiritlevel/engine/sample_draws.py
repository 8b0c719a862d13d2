"""What sample probes have given so far, for all samples alike or by groups of them.

In a trained network few samples carry the curvature. How much of it a sample has is seen at its
outputs, in the trace of the loss's Hessian there, which the probes do not enter. So probes may be
given out in proportion to it without a bias, mixed with a tenth of equal shares, since a sample
without curvature at its outputs may still bend.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..model.distributed import Processes
from ..model.surface import Surface
from .estimate import Estimate, estimates_of_columns
from .sweep.sums import Factors, RowSums, data_variance, mean_estimate

BOUNDS = (0.5, 4.0)  # between the groups, relative to the mean curvature
EQUAL = 0.1  # part of the probes that all samples get alike
WORTHWHILE = 1.5  # how much smaller the variance must be expected to get
LEAST_SAMPLES = 32  # fewer are not worth dividing
MOST_KEPT = 1 << 26  # bytes of the values of one probe: with more, all samples get the same


class SampleGroups:
    """Groups of samples by their curvature, and how many probes each gets."""

    def __init__(self, curvatures: Tensor, processes: Processes) -> None:
        """`curvatures` are those of this process's samples at their outputs, in any order.

        All processes must create it together.
        """
        total, count = _summed([float(curvatures.sum()), len(curvatures)], processes).tolist()
        self._scale = count / total if total > 0 else math.inf
        relative, group_of = self._relative(curvatures), self.of(curvatures)
        wanted = EQUAL + (1 - EQUAL) * relative
        number = len(BOUNDS) + 1
        sums = torch.zeros(3, number, dtype=torch.float64)  # Σ 1, Σ wanted, Σ curvature²
        for row, values in enumerate((torch.ones_like(relative), wanted, relative.square())):
            sums[row].index_add_(0, group_of, values)
        sums = _summed(sums.tolist(), processes)
        self.sizes = (sums[0] / max(count, 1)).tolist()  # as shares of all samples
        means = sums[1] / sums[0].clamp(min=1.0)
        self._rates: list[float] = means.tolist()
        # If the spread of a sample's probes is proportional to its curvature
        expected = torch.where(means > 0, sums[2] / means.clamp(min=EQUAL), means).sum()
        self._gain = float(sums[2].sum() / expected) if expected > 0 else 1.0
        self._count = count

    def of(self, curvatures: Tensor) -> Tensor:
        """The group of each sample, in whatever order the samples come: a loader may shuffle."""
        return torch.bucketize(
            self._relative(curvatures), torch.tensor(BOUNDS, dtype=torch.float64)
        )

    def _relative(self, curvatures: Tensor) -> Tensor:
        """To the mean of all samples; 1 if none has any."""
        if math.isinf(self._scale):
            return torch.ones(len(curvatures), dtype=torch.float64)
        return curvatures.double() * self._scale

    @property
    def pay(self) -> bool:
        """Whether different numbers of probes are worth the smaller batches."""
        return self._count >= LEAST_SAMPLES and self._gain >= WORTHWHILE

    def probes(self, passes: int) -> list[int]:
        """Probes of each group that together cost about as much as `passes` over the data.

        At least two or none: the spread of one is unknown.
        """
        counts = [round(passes * rate) for rate in self._rates]
        return [0 if count < 1 else max(2, count) for count in counts]

    def cost(self, counts: Sequence[int]) -> float:
        """What these probes cost, in passes over the data."""
        return sum(count * size for count, size in zip(counts, self.sizes, strict=True))


def _summed(numbers: list[Any], processes: Processes) -> Tensor:
    """Over all processes; numbers, because a backend may take tensors of its own device only."""
    return torch.tensor(processes.gather(numbers), dtype=torch.float64).sum(dim=0)


def joined(groups: Sequence[tuple[float, Estimate]]) -> Estimate:
    """The estimate of the whole from those of groups, each with its share of the total weight."""
    parts = [estimate.scaled(share) for share, estimate in groups]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


class Slots(NamedTuple):
    """What the rows of a batch are for: each is a sample in some draws, one in every round."""

    samples: Tensor | None  # places in the chunk, maybe several times the same; None: all as is
    draws: Tensor  # of the first round, by the numbers of that sample's draws
    rounds: int  # products of the batch, one after another

    @classmethod
    def of_all(cls, count: int, first: int, rounds: int) -> Slots:
        """Every sample of a chunk in the same draws."""
        return cls(None, torch.full((count,), first), rounds)

    @classmethod
    def of_group(cls, members: Tensor, first: int, count: int, most: int) -> Slots:
        """`count` draws of a few samples, as many beside each other as `most` rows have room for.

        A batch of the samples alone would be small, and take about as long.
        """
        copies = max(1, min(count, most // len(members)))
        rounds = -(-count // copies)
        copies = -(-count // rounds)
        draws = first + rounds * torch.arange(copies).repeat_interleave(len(members))
        return cls(members.repeat(copies), draws, rounds)

    def in_order(self, values: Sequence[Tensor], count: int, members: int) -> list[Tensor]:
        """One tensor for each draw of a group, from those of each round, shape: (rows, slots)."""
        by_copy = torch.stack(list(values)).unflatten(2, (-1, members))  # (rounds, rows, copies, N)
        return list(by_copy.permute(2, 0, 1, 3).flatten(0, 1)[:count])


class KeptChunk(NamedTuple):
    """Single values of the probes of a chunk, and what goes with its samples."""

    values: Tensor  # shape: (probes, rows, N)
    weights: Tensor
    curvatures: Tensor  # at the outputs


class SampleDraws:
    """What was drawn of one operator: for all samples alike, and then by groups of them."""

    def __init__(self, names: Sequence[str], surface: Surface) -> None:
        """`names` are the names of the rows."""
        self._names, self._surface = names, surface
        self.parts: list[tuple[int, RowSums]] = []  # of all samples, with the number of probes
        self.by_group: list[list[tuple[int, RowSums]]] = []  # the same, once groups were formed
        self.groups: SampleGroups | None = None
        self.passes = 0.0  # what they cost, in passes over the data
        self.times = 0  # how often probes were added
        self._neurons: dict[str, list[Tensor]] = {}
        self._kept: list[KeptChunk] | None = None  # of the first probes; None if there are none

    def new_sums(self) -> RowSums:
        """Empty sums for the next probes."""
        return RowSums(self._names, self._surface.device, signed=True)

    def keeps(self, num_samples: int) -> bool:
        """Whether to keep the single values of the next probes, from which groups are formed."""
        fits = 8 * len(self._names) * num_samples <= MOST_KEPT
        return not self.parts and num_samples >= LEAST_SAMPLES and fits

    def add(
        self,
        count: int,
        sums: RowSums,
        kept: list[KeptChunk] | None,
        neurons: Mapping[str, Tensor],
    ) -> None:
        """Add probes that all samples have had; `kept` are their single values, if they are kept.

        `neurons` are ρ(j) by layer, summed over the samples, one row per probe.
        """
        for row, values in neurons.items():
            self._neurons.setdefault(row, []).append(values)
        self.parts.append((count, sums))
        self.passes += count
        self.times += 1
        self._kept = kept

    @property
    def can_be_divided(self) -> bool:
        """Whether groups can be formed now; all processes say the same."""
        return self.groups is None and self._kept is not None

    def divide(self) -> None:
        """Form the groups, if they pay: what all samples have so far is then theirs.

        All processes must do so together.
        """
        assert self._kept is not None
        count, rows = self.parts[0][0], len(self._names)
        empty = torch.zeros(count, rows, 0, dtype=torch.float64)  # a process may have no data
        values = torch.cat([empty, *[kept.values for kept in self._kept]], dim=2)
        weights = torch.cat([empty[0, 0], *[kept.weights for kept in self._kept]])
        curvatures = torch.cat([empty[0, 0], *[kept.curvatures for kept in self._kept]])
        self._kept, groups = None, SampleGroups(curvatures, self._surface.processes)
        if not groups.pay:
            return
        group_of = groups.of(curvatures)
        for group in range(len(groups.sizes)):
            sums, members = self.new_sums(), group_of == group
            of_group = values[:, :, members].to(self._surface.device)
            sums.add(list(of_group), weights[members].to(of_group))
            sums.reduce(self._surface.processes)
            self.by_group.append([(count, sums)])
        self.groups = groups

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
        self.times += 1

    def neurons(self, row: str) -> list[Estimate]:
        """ρ(j) of every neuron of a layer."""
        values = torch.cat(self._neurons[row]) / self.parts[0][1].between.total_weight
        return estimates_of_columns(values.tolist())

    def estimate(self, factors: Factors) -> Estimate:
        """Σ over rows of factor × value."""
        groups = [self.parts] if self.groups is None else self.by_group
        groups = [parts for parts in groups if parts[0][1].between.total_weight]
        whole = self.parts[0][1].between.total_weight
        estimates = []
        for parts in groups:
            of_parts = [(count, sums.estimate(factors, count)) for count, sums in parts]
            weight = parts[0][1].between.total_weight
            estimates.append((weight / whole, mean_estimate(of_parts)))
        found = joined(estimates)
        data = data_variance(groups, factors, found)
        return dataclasses.replace(found, data_variance=data)
