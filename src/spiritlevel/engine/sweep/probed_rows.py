"""Sums over output columns, from all columns or from random probes until they are precise enough.

This does for any pass with one value per sample, row and column what `Workspace.sweep_to` does for
the rows of the GGN.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ...model.batches import BatchLocation
from ...records.measurements import Cost
from ..estimate import Estimate, cautious_count
from ..workspace import EXACT_COLUMNS, MIN_SPREADS, Workspace
from .sums import Factors, RowSums, pooled_estimate

Run = Callable[[range | None], RowSums]  # a pass with these probes, or with all columns


class SampleNumbers:
    """The number of each sample in the data of all processes, however the data is divided."""

    def __init__(self, workspace: Workspace) -> None:
        """All processes must create it together."""
        self.device = workspace.surface.device
        processes = workspace.surface.processes
        self.offset = 0
        if processes.size > 1:
            counts = processes.gather(workspace.surface.count_samples())
            self.offset = sum(counts[: processes.rank])

    def of(self, where: BatchLocation, count: int) -> Tensor:
        """The numbers of the `count` samples of a chunk."""
        return (self.offset + where.first + torch.arange(count)).to(self.device)


class ProbedRows:
    """The rows of a pass over the data; further probes are added as measures ask for precision."""

    def __init__(self, workspace: Workspace, run: Run, *, num_columns: int) -> None:
        """All columns if they are few, probes if they are many, unless the method decides."""
        self.workspace, self.num_columns = workspace, num_columns
        self.cost = Cost()
        self._run = run
        self._parts: list[tuple[int | None, RowSums]] = []
        method = workspace.precision.method
        by_probes = num_columns > EXACT_COLUMNS and method != "exact"
        self._add(range(workspace.pilot_count) if by_probes or method == "output_probes" else None)

    @property
    def num_probes(self) -> int:
        """Probes so far; 0 if all columns were taken."""
        return sum(count or 0 for count, _ in self._parts)

    def estimate(self, factors: Factors) -> Estimate:
        """Σ over rows of factor × mean value."""
        parts = [(count or 1, rows.estimate(factors, count)) for count, rows in self._parts]
        return pooled_estimate(parts)

    def refine(self, factors: Factors, rtol: float) -> Estimate:
        """Add probes until the sum is within `rtol`, or the passes are used up."""
        asked = self.workspace.precision
        while self.num_probes:
            estimate, count = self.estimate(factors), self.num_probes
            if estimate.value == 0.0 and estimate.variance == 0.0:
                break
            deciding = self._parts[0][1].effective_samples(factors)
            least = 1 + math.ceil(MIN_SPREADS / max(deciding, 1.0))
            if count >= least and estimate.within(rtol, asked.confidence):
                break
            margin = rtol * abs(estimate.value)
            growth = (estimate.half_width(asked.confidence) / margin) ** 2 if margin else 4.0
            wanted = max(math.ceil(1.05 * count * min(growth, 4.0)), least)
            if asked.method != "output_probes" and wanted >= self.num_columns:
                self._parts.clear()
                self._add(None)  # all columns cost no more than that
                break
            more = min(wanted, asked.max_passes) - count
            if more < 2:  # the error of a single probe is unknown
                break
            self._add(range(count, count + more))
        return self.estimate(factors)

    @property
    def text(self) -> str:
        """How many probes replace how many columns."""
        return f"{self.num_probes} output probes for {self.num_columns} columns"

    def missed(self, estimate: Estimate, rtol: float) -> str:
        """How many probes were used, and how many would have reached `rtol`."""
        asked = self.workspace.precision
        if estimate.unknown:
            return f"{self.text}, too few for an interval. Raise max_passes."
        reached = estimate.half_width(asked.confidence) / abs(estimate.value)
        enough = cautious_count(self.num_probes * (reached / rtol) ** 2, estimate.dof)
        return f"{self.text}; max_passes={enough} would have sufficed."

    def _add(self, streams: range | None) -> None:
        surface = self.workspace.surface
        before = surface.cost
        rows = self._run(streams)
        self.cost += surface.processes.total_cost(surface.cost - before)
        self._parts.append((None if streams is None else len(streams), rows))
