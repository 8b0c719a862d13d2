"""Where the curvature is: samples in groups that get different numbers of probes.

In a trained network few samples carry the curvature. How much of it a sample has is seen at its
outputs, in the trace of the loss's Hessian there, which the probes do not enter. So probes may be
given out in proportion to it without a bias, mixed with a tenth of equal shares, since a sample
without curvature at its outputs may still bend.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..model.distributed import Processes
from .estimate import Estimate

BOUNDS = (0.5, 4.0)  # between the groups, relative to the mean curvature
EQUAL = 0.1  # part of the probes that all samples get alike
WORTHWHILE = 1.5  # how much smaller the variance must be expected to get
LEAST_SAMPLES = 32  # fewer are not worth dividing


class SampleGroups:
    """The groups of this process's samples, and how many probes each gets."""

    def __init__(self, curvatures: Tensor, processes: Processes) -> None:
        """`curvatures` are those of the samples at their outputs, in the order of the data.

        All processes must create it together.
        """
        curvatures = curvatures.double().cpu()
        total, count = _summed([float(curvatures.sum()), len(curvatures)], processes).tolist()
        relative = curvatures * (count / total) if total > 0 else torch.ones_like(curvatures)
        self.group_of = torch.bucketize(relative, torch.tensor(BOUNDS, dtype=torch.float64))
        wanted = EQUAL + (1 - EQUAL) * relative
        number = len(BOUNDS) + 1
        sums = torch.zeros(3, number, dtype=torch.float64)  # Σ 1, Σ wanted, Σ curvature²
        for row, values in enumerate((torch.ones_like(relative), wanted, relative.square())):
            sums[row].index_add_(0, self.group_of, values)
        sums = _summed(sums.tolist(), processes)
        self.sizes = (sums[0] / max(count, 1)).tolist()  # as shares of all samples
        means = sums[1] / sums[0].clamp(min=1.0)
        self._rates: list[float] = means.tolist()
        # If the spread of a sample's probes is proportional to its curvature
        expected = torch.where(means > 0, sums[2] / means.clamp(min=EQUAL), means).sum()
        self._gain = float(sums[2].sum() / expected) if expected > 0 else 1.0
        self._count = count

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
