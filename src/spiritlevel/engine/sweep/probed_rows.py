"""Sums over output columns of a pass of one's own, with as many probes as measures ask for."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ...model.batches import BatchLocation
from ...records.measurements import Cost
from ..estimate import Estimate
from ..refine import advice, for_more, refine
from ..workspace import Workspace
from .output_probes import OutputProbes
from .sums import Factors, Part, RowSums

Run = Callable[[range | None], RowSums]  # a pass with these probes, or with all columns


class SampleNumbers:
    """The number of each sample in the data of all processes, however the data is divided."""

    def __init__(self, workspace: Workspace) -> None:
        """All processes must create it together, since they exchange their numbers of samples."""
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
        self._parts: list[Part] = []
        by_probes = workspace.precision.probes_columns(num_columns)
        self._add(range(workspace.pilot_count) if by_probes else None)

    def rows(self, factors: Factors) -> OutputProbes:
        """Σ over rows of factor × mean value, and the way to more probes of it."""
        most = self.workspace.precision.most_probes(self.num_columns)
        return OutputProbes(lambda: self._parts, self._add, factors, num_columns=most)

    def estimate(self, factors: Factors) -> Estimate:
        """Σ over rows of factor × mean value."""
        return self.rows(factors).estimate()

    def refine(self, factors: Factors, rtol: float) -> Estimate:
        """Add probes until the sum is within `rtol`, or the passes are used up."""
        return refine(self.rows(factors), self.workspace.precision, rtol)

    @property
    def text(self) -> str:
        """How many probes replace how many columns."""
        count = sum(count or 0 for count, _ in self._parts)
        return f"{count} output probes for {self.num_columns} columns"

    def missed(self, factors: Factors, estimate: Estimate) -> str:
        """How many probes were used for an estimate from these rows, and how many would do."""
        rows, asked = self.rows(factors), self.workspace.precision
        if estimate.unknown:
            then = for_more(rows, asked).capitalize()
            return f"{self.text}, too few for an interval. {then}."
        return f"{self.text}; {advice(rows, asked, estimate)}"

    def _add(self, streams: range | None) -> None:
        """The pass with all columns takes the place of all probes."""
        surface = self.workspace.surface
        before = surface.cost
        rows = self._run(streams)
        self.cost += surface.processes.total_cost(surface.cost - before)
        if streams is None:
            self._parts.clear()
        self._parts.append((None if streams is None else len(streams), rows))
