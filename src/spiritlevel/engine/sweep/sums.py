"""What a sweep adds up over the data, and the estimates that follow from it.

In an exact sweep every sample has one value. With output probes it has one value per probe: the
mean of a sample's values counts, and their spread within the sample, added up over the samples,
gives the error of the probes. The spread of the means between samples contains both errors.
Where leading columns are taken exactly, the probes are of what these leave, and both are summed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from ...math.curvature import OrderedColumns
from ...model.distributed import Processes
from ..estimate import Estimate
from ..moments import Moments, without_noise

RowKind = Literal["trace", "kappa", "kappa_std", "kappa_var", "rho"]
Factors = Mapping[str, float]  # by row; an estimate is of Σ factor × value

# Degrees of freedom of the variance of output probes. Below FEW their signs may all agree on a
# wrong value; from MANY on the usual interval covers the truth in 95 % of the cases.
FEW, MANY = 7, 64
RANKS = (0, 1, 2, 4, 8, 16, 32, 64, 128)  # how many leading columns may be taken


@dataclasses.dataclass
class ChunkValues:
    """The values of one chunk, for all factor columns together or for one probe."""

    rows: dict[str, Tensor]  # by kind, shape: (rows, N)
    neurons: dict[str, Tensor]  # ρ(j) summed over the samples, by layer

    def __add__(self, other: ChunkValues) -> ChunkValues:
        """Those of the columns of both; the other ones may not reach every layer."""
        rows = {kind: values + other.rows[kind] for kind, values in self.rows.items()}
        more = other.neurons
        neurons = {k: v + more[k] if k in more else v for k, v in self.neurons.items()}
        return ChunkValues(rows, neurons)


class RowSums:
    """Sums over named rows, each with one value per sample, or one per sample and probe."""

    def __init__(
        self,
        names: Iterable[str],
        device: torch.device,
        *,
        signed: bool = False,
        leading: bool = False,
    ) -> None:
        """One row per name; `signed` says that values of both signs are to be expected.

        `leading` says that a part of every value is exact.
        """
        self.signed = signed
        self.between = Moments(names, device)
        self.drawn = Moments(self.between.index, device) if leading else self.between  # by probes
        size = len(self.between.index)
        zeros = {"dtype": torch.float64, "device": device}
        self.within = torch.zeros(size, size, **zeros)  # type: ignore[call-overload]
        # Σ_n (spread of sample n)², for each row and for their sum: shows if few samples dominate
        self.fourth = torch.zeros(size + 1, **zeros)  # type: ignore[call-overload]

    def add(self, draws: list[Tensor], weights: Tensor, leading: Sequence[Tensor] = ()) -> None:
        """Add some probes of a chunk and its leading columns, each of shape (rows, N)."""
        values = torch.stack(draws)
        mean = values.mean(dim=0)
        self.between.add(mean + sum(leading), weights)
        if self.drawn is not self.between:
            self.drawn.add(mean, weights)
        if len(draws) > 1:
            apart = values - mean
            self.within += torch.einsum("krn,ksn->rs", apart, apart)
            both = torch.cat([apart, apart.sum(dim=1, keepdim=True)], dim=1)
            self.fourth += both.square().sum(dim=0).square().sum(dim=1)

    def reduce(self, processes: Processes) -> None:
        """Add up the sums over all processes, and fetch them."""
        self.between.reduce(processes)
        if self.drawn is not self.between:
            self.drawn.reduce(processes)
        processes.sum_(self.within, self.fourth)
        self.within, self.fourth = self.within.cpu(), self.fourth.cpu()

    def estimate(self, factors: Factors, num_probes: int | None) -> Estimate:
        """Σ over rows of factor × mean value, without its sampling error; exact without probes.

        What leading columns give comes on top of it.
        """
        moments = self.drawn
        names, values = list(factors), list(factors.values())
        value = moments.mean(names, values)
        if num_probes is None:
            return Estimate(value)
        variance = self.noise(factors, num_probes) / moments.total_weight**2
        seen = (num_probes - 1) * self.effective_samples(factors)
        if self.signed:  # values that cancel say nothing about how many samples matter
            seen = (num_probes - 1) * float(moments.count)
        if variance == 0.0:
            return Estimate(value, 0.0, seen, drawn=True)
        # a single row has its own sums; a group of rows uses those of all rows together
        row = moments.index[names[0]] if len(names) == 1 else len(self.fourth) - 1
        diagonal = self.within[row, row] if len(names) == 1 else self.within.sum()
        fourth = float(self.fourth[row])
        dof = (num_probes - 1) * float(diagonal) ** 2 / fourth if fourth else math.inf
        # if few samples dominate, their spread may be small by chance: count only those
        dof = min(dof, seen)
        return Estimate(value, variance, dof, drawn=True)

    def of_leading(self, factors: Factors) -> float:
        """What the leading columns give of it."""
        if self.drawn is self.between:
            return 0.0
        names, values = list(factors), list(factors.values())
        return self.between.mean(names, values) - self.drawn.mean(names, values)

    def noise(self, factors: Factors, num_probes: int | None) -> float:
        """Σ over the samples of the variance of a sample's mean over the probes."""
        if num_probes is None:
            return 0.0
        c = self.between.combination(list(factors), list(factors.values()))
        return float(c @ self.within @ c) / (num_probes - 1) / num_probes

    def effective_samples(self, factors: Factors) -> float:
        """(Σ v)² / Σ v² of what is drawn: the number of samples if all are equal, at least 1."""
        moments = self.drawn
        c = moments.combination(list(factors), list(factors.values()))
        squares = float(c @ moments.products @ c)
        return float(c @ moments.sums) ** 2 / squares if squares > 0 else float(moments.count)


class SweepSums:
    """The sums of all kinds of rows; `num_probes` is None for an exact sweep."""

    def __init__(
        self,
        names: Mapping[str, Iterable[str]],
        device: torch.device,
        num_probes: int | None = None,
        leading: int = 0,
        *,
        signed: bool = False,
    ) -> None:
        """`names` are those of the rows of each kind; so many `leading` columns are exact."""
        self.num_probes, self.leading = num_probes, leading
        self.kinds = {
            kind: RowSums(rows, device, signed=signed, leading=leading > 0)
            for kind, rows in names.items()
        }
        # Σ_n v and Σ_n v² of the curvature v of the outputs that as many leading columns as in
        # RANKS leave in sample n; infinite where columns have no order
        self.left = torch.zeros(2, len(RANKS), dtype=torch.float64, device=device)
        self.index = {kind: sums.between.index for kind, sums in self.kinds.items()}
        self.neurons: dict[
            str, Tensor
        ] = {}  # ρ(j) by layer, one row per probe, not divided by the weight

    def add(self, values: list[ChunkValues], weights: Tensor) -> None:
        """Add a chunk: the leading columns, and one entry for all others or one per probe."""
        leading, draws = values[: self.leading], values[self.leading :]
        for kind, sums in self.kinds.items():
            exact = [column.rows[kind] for column in leading]
            sums.add([drawn.rows[kind] for drawn in draws], weights, exact)
        for column in leading:
            for layer, of_neurons in column.neurons.items():
                self.neurons[layer] += of_neurons
        for probe, drawn in enumerate(draws):
            for layer, of_neurons in drawn.neurons.items():
                self.neurons[layer][probe] += of_neurons

    def add_left(self, columns: OrderedColumns) -> None:
        """Add what leading columns leave of a chunk."""
        last = columns.order.shape[1] - 1
        left = columns.left([min(rank, last) for rank in RANKS])
        self.left += torch.stack([left.sum(dim=0), left.square().sum(dim=0)])

    def reduce(self, processes: Processes) -> None:
        """Add up the sums over all processes."""
        for sums in self.kinds.values():
            sums.reduce(processes)
        processes.sum_(self.left, *self.neurons.values())
        self.left = self.left.cpu()

    def neuron_values(self, layer: str) -> Tensor:
        """ρ(j) of a layer, one row per probe."""
        return self.neurons[layer] / self.kinds["rho"].between.total_weight


Part = tuple[int | None, RowSums]  # the sums of a pass, and its number of probes: None has all


def pooled_estimate(parts: list[tuple[int, Estimate]]) -> Estimate:
    """One estimate from several of the same number, each with its number of probes."""
    return cautious(mean_estimate(parts))


def mean_estimate(parts: list[tuple[int, Estimate]]) -> Estimate:
    """The mean of all parts, as `pooled_estimate` but as if the variance were well known."""
    return parts[0][1] if len(parts) == 1 else _mean(parts)


def cautious(estimate: Estimate, few: float = FEW, *, share: float = 0.5) -> Estimate:
    """With a larger error, or none, if it rests on few probes of few samples.

    There is none below `few` degrees of freedom.
    The values of probes are never negative, and the error is proportional to the value. A value
    that is too small by chance therefore comes with an error that is too small as well. `share`
    of the relative error is how much larger it is made: 1 where the values are skewed.
    """
    if estimate.exact or estimate.dof >= MANY or not (estimate.value or estimate.variance):
        return estimate
    if estimate.dof < few or not estimate.value:
        return dataclasses.replace(estimate, variance=math.inf)
    relative = estimate.half_width(0.95) / abs(estimate.value)
    return dataclasses.replace(estimate, variance=estimate.variance * (1 + share * relative) ** 2)


def _mean(parts: list[tuple[int, Estimate]]) -> Estimate:
    total = sum(count for count, _ in parts)
    value = sum(count * e.value for count, e in parts) / total
    variance = sum((count / total) ** 2 * e.variance for count, e in parts)
    spread = sum(((count / total) ** 2 * e.variance) ** 2 / e.dof for count, e in parts)
    dof = variance**2 / spread if spread else sum(e.dof for _, e in parts)
    return Estimate(value, variance, dof, drawn=any(e.drawn for _, e in parts))


def data_variance(
    groups: Sequence[Sequence[Part]], factors: Factors, found: Estimate
) -> float | None:
    """The variance of the sampling error of Σ factor × value, which was `found` from these parts.

    Each group of samples has had passes of its own. None for a single sample, and where the noise
    of the probes hides how much the samples differ.
    """
    names, values = list(factors), list(factors.values())
    count, weight, squares, total, noise, of_mean = 0, 0.0, 0.0, 0.0, 0.0, 0.0
    for parts in groups:
        moments, probes = parts[0][1].between, sum(number or 1 for number, _ in parts)
        count, weight = count + moments.count, weight + moments.total_weight
        squares += float(moments.weights[1])
        for number, sums in parts:
            share, own = (number or 1) / probes, sums.noise(factors, number)
            total += share * sums.between.spread(names, values, found.value)
            noise, of_mean = noise + share * own, of_mean + share**2 * own
    if count < 2:
        return None
    noise -= of_mean * squares / weight**2  # the mean follows the noise of the samples
    scale = count / (count - 1) / weight**2
    return without_noise(scale * total, scale * noise, count=count, dof=found.dof)
