"""Sums over output columns, taken all or by random probes until they are as precise as asked.

What the sweep of the GGN does for its own rows (`Work.sweep_to`), for any pass over the data that
brings a value a sample, row and column.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from ...model.batches import BatchLocation
from ...records import Cost
from ..estimate import Estimate, cautious_count
from ..workspace import EXACT_COLUMNS, MIN_SPREADS, Workspace
from .sums import RowSums, pooled_estimate

Factors = Mapping[str, float]  # by row
Run = Callable[[range | None], RowSums]  # a pass with these probes, or with all columns


class SampleNumbers:
    """Numbers of samples in the data of all processes: they do not depend on how it is cut."""

    def __init__(self, workspace: Workspace) -> None:
        """All processes must make it together."""
        self.device = workspace.surface.device
        processes = workspace.surface.processes
        self.offset = 0
        if processes.size > 1:
            counts = processes.gather(workspace.surface.count_samples())
            self.offset = sum(counts[: processes.rank])

    def of(self, where: BatchLocation, count: int) -> Tensor:
        """Of the samples of a chunk."""
        return (self.offset + where.first + torch.arange(count)).to(self.device)


class ProbedRows:
    """The rows of a pass over the data; further probes are added as measures ask for precision."""

    def __init__(self, workspace: Workspace, run: Run, *, num_columns: int) -> None:
        """Few columns are all taken, many are probed, unless the method says otherwise."""
        self.workspace, self.num_columns = workspace, num_columns
        self.cost = Cost()
        self._run = run
        self._parts: list[tuple[int | None, RowSums]] = []
        method = workspace.precision.method
        by_probes = num_columns > EXACT_COLUMNS and method != "exact"
        self._add(range(workspace.pilot_count) if by_probes or method == "output_probes" else None)

    @property
    def num_probes(self) -> int:
        """Probes so far; 0 where all columns were taken."""
        return sum(count or 0 for count, _ in self._parts)

    def estimate(self, factors: Factors) -> Estimate:
        """Σ over rows of factor × mean value."""
        parts = [(count or 1, rows.estimate(factors, count)) for count, rows in self._parts]
        return parts[0][1] if len(parts) == 1 else pooled_estimate(parts)

    def refine(self, factors: Factors, rtol: float) -> Estimate:
        """Add probes until the sum is within `rtol`, or the passes are spent."""
        asked = self.workspace.precision
        while self.num_probes:
            found, count = self.estimate(factors), self.num_probes
            if found.value == 0.0 and found.variance == 0.0:
                break
            deciding = self._parts[0][1].effective_samples(factors)
            least = 1 + math.ceil(MIN_SPREADS / max(deciding, 1.0))
            if count >= least and found.within(rtol, asked.confidence):
                break
            margin = rtol * abs(found.value)
            growth = (found.half_width(asked.confidence) / margin) ** 2 if margin else 4.0
            wanted = max(math.ceil(1.05 * count * min(growth, 4.0)), least)
            if asked.method != "output_probes" and wanted >= self.num_columns:
                self._parts.clear()
                self._add(None)  # all columns are no more than that
                break
            more = min(wanted, asked.max_passes) - count
            if more < 2:  # fewer leave their error unknown
                break
            self._add(range(count, count + more))
        return self.estimate(factors)

    @property
    def text(self) -> str:
        """How many probes stand for how many columns."""
        return f"{self.num_probes} output probes for {self.num_columns} columns"

    def missed(self, found: Estimate, rtol: float) -> str:
        """What was reached, and what would have sufficed for `rtol`."""
        asked = self.workspace.precision
        wider = found.half_width(asked.confidence) / abs(found.value)
        enough = cautious_count(self.num_probes * (wider / rtol) ** 2, found.dof)
        return f"{self.text}; max_passes={enough} would have sufficed."

    def _add(self, streams: range | None) -> None:
        surface = self.workspace.surface
        before = surface.cost
        rows = self._run(streams)
        self.cost += surface.processes.total_cost(surface.cost - before)
        self._parts.append((None if streams is None else len(streams), rows))
