"""What a sweep adds up over the data, and the estimates that come out of it.

In an exact sweep every sample brings its value. With output probes it brings one value a probe: the
mean of a sample's values counts, and their spread within the sample, added up over the samples, is
the error of the probes. The spread of the means between samples is data and probes together.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Literal

import torch
from torch import Tensor

from ...model.distributed import Processes
from ...model.surface import Surface
from ..estimate import Estimate
from ..moments import Moments
from ..plan import matrix_layers

RowKind = Literal["trace", "kappa", "kappa_std", "kappa_var", "rho"]


@dataclasses.dataclass
class ChunkValues:
    """The values of one chunk: of all factor columns together, or of one probe."""

    rows: dict[str, Tensor]  # by kind, shape: (rows, N)
    neurons: dict[str, Tensor]  # ρ(j) summed over the samples, by layer


class RowSums:
    """Named rows: a value a sample and row, or one a probe."""

    def __init__(self, names: Iterable[str], device: torch.device) -> None:
        """One row a name."""
        self.between = Moments(names, device)
        size = len(self.between.index)
        zeros = {"dtype": torch.float64, "device": device}
        self.within = torch.zeros(size, size, **zeros)  # type: ignore[call-overload]
        # Σ_n (spread of sample n)², of each row and of all together: how few samples decide
        self.fourth = torch.zeros(size + 1, **zeros)  # type: ignore[call-overload]

    def add(self, draws: list[Tensor], weights: Tensor) -> None:
        """Some probes of a chunk, each of shape (rows, N)."""
        values = torch.stack(draws)
        mean = values.mean(dim=0)
        self.between.add(mean, weights)
        if len(draws) > 1:
            apart = values - mean
            self.within += torch.einsum("krn,ksn->rs", apart, apart)
            both = torch.cat([apart, apart.sum(dim=1, keepdim=True)], dim=1)
            self.fourth += both.square().sum(dim=0).square().sum(dim=1)

    def reduce(self, processes: Processes) -> None:
        """Add up over the processes."""
        self.between.reduce(processes)
        processes.sum_(self.within, self.fourth)

    def estimate(self, factors: Mapping[str, float], num_probes: int | None) -> Estimate:
        """Σ over rows of factor × mean value; exact where there were no probes."""
        moments = self.between
        names, values = list(factors), list(factors.values())
        value, spread = moments.mean(names, values), moments.stderr(names, values)
        total = None if spread is None else spread**2
        if num_probes is None:
            return Estimate(value, data_variance=total)
        c = moments.combination(names, values)
        squares = float(c @ self.within @ c)
        variance = squares / (num_probes - 1) / num_probes / moments.total_weight**2
        if variance == 0.0:
            return Estimate(value, data_variance=total)
        # the rows of one name have their own; groups are judged by all rows together
        row = moments.index[names[0]] if len(names) == 1 else len(self.fourth) - 1
        diagonal = self.within[row, row] if len(names) == 1 else self.within.sum()
        fourth = float(self.fourth[row])
        dof = (num_probes - 1) * float(diagonal) ** 2 / fourth if fourth else math.inf
        # where few samples decide, their spread may be small by chance: count those that matter
        dof = min(dof, (num_probes - 1) * self.effective_samples(factors))
        data = None if total is None else max(total - variance, 0.0)
        return Estimate(value, variance, dof, data)

    def effective_samples(self, factors: Mapping[str, float]) -> float:
        """(Σ v)² / Σ v² over the samples: all of them if they are alike, 1 if one decides."""
        moments = self.between
        c = moments.combination(list(factors), list(factors.values()))
        squares = float(c @ moments.products @ c)
        return float(c @ moments.sums) ** 2 / squares if squares > 0 else float(moments.count)


class SweepSums:
    """All kinds; `num_probes` is None for an exact sweep."""

    def __init__(
        self, surface: Surface, num_probes: int | None = None, more: Iterable[RowKind] = ()
    ) -> None:
        """A row a parameter for the trace, a row a layer whose weight acts as a matrix for κ, ρ.

        `more` are further kinds of κ.
        """
        matrices = matrix_layers(surface)
        names: dict[str, Iterable[str]] = {
            "trace": surface.parameters,
            "kappa": matrices,
            "rho": matrices,
        }
        for kind in more:
            names[kind] = matrices
        self.num_probes = num_probes
        self.kinds = {kind: RowSums(rows, surface.device) for kind, rows in names.items()}
        self.index = {kind: sums.between.index for kind, sums in self.kinds.items()}
        self.neurons: dict[str, Tensor] = {}  # ρ(j) of each such layer by probe, not yet averaged

    def add(self, draws: list[ChunkValues], weights: Tensor) -> None:
        """One chunk: a single draw of all columns, or one a probe."""
        for kind, sums in self.kinds.items():
            sums.add([drawn.rows[kind] for drawn in draws], weights)
        for held, drawn in enumerate(draws):
            for layer, values in drawn.neurons.items():
                self.neurons[layer][held] += values

    def reduce(self, processes: Processes) -> None:
        """Add up over the processes."""
        for sums in self.kinds.values():
            sums.reduce(processes)
        processes.sum_(*self.neurons.values())

    def estimate(self, kind: RowKind, factors: Mapping[str, float]) -> Estimate:
        """Σ over rows of factor × mean value."""
        return self.kinds[kind].estimate(factors, self.num_probes)

    def effective_samples(self, kind: RowKind, factors: Mapping[str, float]) -> float:
        """How many samples decide a sum of rows."""
        return self.kinds[kind].effective_samples(factors)

    def neuron_values(self, layer: str) -> Tensor:
        """ρ(j) of a layer, a row a probe."""
        return self.neurons[layer] / self.kinds["rho"].between.total_weight


def pooled_estimate(parts: list[tuple[int, Estimate]]) -> Estimate:
    """Estimates of one number from different probes, each with how many probes it took."""
    total = sum(count for count, _ in parts)
    value = sum(count * e.value for count, e in parts) / total
    variance = sum((count / total) ** 2 * e.variance for count, e in parts)
    spread = sum(((count / total) ** 2 * e.variance) ** 2 / e.dof for count, e in parts)
    known = [(count, e.data_variance) for count, e in parts if e.data_variance is not None]
    data = sum(c * v for c, v in known) / sum(c for c, _ in known) if known else None
    return Estimate(value, variance, variance**2 / spread if spread else math.inf, data)
