"""Probes in weight space: Hutchinson, Hutch++, and Hutchinson on the residual H − GGN alone.

The error of a probe is that of the whole matrix, whatever the number of samples. So it pays to take
out of the matrix what is known already: the GGN, which the sweep has exactly or nearly so, or the
dominant directions, which Hutch++ finds by multiplying a few random vectors (Meyer et al. 2021).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ...records import Cost
from ..estimate import Estimate, cautious_count, estimate_from_repetitions
from ..moments import Moments
from .metrics import Metric
from .products import Operator, Products, Request

PILOT = 32  # probes before the first look: an interval from fewer is wide and not to be trusted
CLUSTERS = 16  # parts of the data whose spread gives the data error
GROWTH = 4  # a stage may multiply the probes so far by no more than this
ROUND_OFF = 1e-13  # of a value: an error below it is one of the arithmetic
VECTOR_BYTES = 1 << 28  # directions and products that a pass may hold at a time


class WeightProbes:
    """All probes of one metric so far, on one or several operators."""

    def __init__(self, products: Products, metric: Metric, *, seed: int, num_samples: int) -> None:
        """`num_samples` is the size of the whole data set."""
        self.products, self.metric, self.seed = products, metric, seed
        self.cluster = max(1, math.ceil(num_samples / CLUSTERS))
        self.values: dict[Operator, list[Tensor]] = {}  # one row of (rows,) a probe
        self.parts: dict[Operator, Moments] = {}  # the same by part of the data, of a first look
        self._looked: dict[Operator, int] = {}  # probes that `parts` rest on
        self.elements: dict[Operator, list[Tensor]] = {}  # ξ∘Bξ a probe: ρ(j) of every neuron
        self.known: Tensor | None = None  # ξ∘Bξ as far as Hutch++ has it exactly, shape: (size,)
        self._basis: Tensor | None = None
        self._image: Tensor | None = None
        self._drawn = 0
        self.cost = Cost()

    def count(self, operator: Operator) -> int:
        """Probes of an operator so far; each took one pass over the data."""
        return len(self.values.get(operator, ()))

    @property
    def passes(self) -> int:
        """Products so far, of all operators and of the sketch."""
        return 2 * self.sketched + sum(len(values) for values in self.values.values())

    @property
    def sketched(self) -> int:
        """Directions that Hutch++ took out."""
        return 0 if self._basis is None else len(self._basis)

    @property
    def common(self) -> int:
        """Probes that all operators have had: the first look at each."""
        return min(len(values) for values in self.values.values())

    def draw(self, operators: Sequence[Operator], count: int) -> None:
        """`count` more probes, the same signs for each operator."""
        pilot = self._basis is None and min(map(self.count, operators)) < PILOT
        while count > 0:
            part = min(count, self._held())
            signs = self.metric.signs(self.seed, self._drawn, part)
            found = self._multiply(operators, self._deflated(signs), signs, pilot=pilot)
            for operator, rows in zip(operators, found, strict=True):
                rows = self._deflated(rows)
                self._note(operator, signs, rows)
            self._drawn += part
            count -= part

    def sketch(self, operator: Operator, count: int) -> None:
        """Hutch++: multiply random vectors, and know the matrix on the space they span."""
        signs = self.metric.signs(self.seed, self._drawn, count)
        self._drawn += count
        (images,) = self._multiply([operator], signs, signs, pilot=True)
        basis, _ = torch.linalg.qr(images.double().T)
        basis = basis.T.contiguous().to(images.dtype)
        (image,) = self._multiply([operator], basis, None, pilot=False)
        self._basis, self._image = basis, image
        # the diagonal of H = PHP + QQᵀH + HQQᵀ − QQᵀHQQᵀ, without that of PHP
        small = image.double() @ basis.double().T
        twice = 2 * basis.double() * image.double()
        self.known = (twice - basis.double() * (small @ basis.double())).sum(dim=0)

    def estimate(self, operator: Operator, factors: Mapping[str, float]) -> Estimate:
        """Σ over rows of factor × E⟨ξ, Bξ⟩."""
        values, c = self._combined(operator, factors)
        moments = self.parts.get(operator)
        spread = None if moments is None else moments.stderr(list(factors), list(factors.values()))
        found = estimate_from_repetitions(values, None if spread is None else spread**2)
        if self.known is not None:
            ones = torch.ones_like(self.known)[None]
            known = self.metric.by_row(self.known[None], ones)[0].cpu()
            found = Estimate(float(known @ c), data_variance=0.0) + found
        if found.stderr <= ROUND_OFF * abs(found.value):  # Hutch++ has seen the whole matrix
            found = dataclasses.replace(found, variance=0.0)
        return found

    def spread(self, operator: Operator, factors: Mapping[str, float], count: int) -> float:
        """Variance of one probe, from the first `count`."""
        return (
            estimate_from_repetitions(self._combined(operator, factors)[0][:count]).variance * count
        )

    def _combined(
        self, operator: Operator, factors: Mapping[str, float]
    ) -> tuple[list[float], Tensor]:
        """Σ factor × row of every probe, and the factors as a vector."""
        index = {name: i for i, name in enumerate(self.metric.rows)}
        c = torch.zeros(len(index), dtype=torch.float64)
        for name, factor in factors.items():
            c[index[name]] = factor
        return (torch.stack(self.values[operator]).cpu() @ c).tolist(), c

    def _held(self) -> int:
        """Vectors that a pass may hold."""
        size = max(self.metric.space.size, self.metric.size)
        return max(1, VECTOR_BYTES // (16 * size))

    def _multiply(
        self, operators: Sequence[Operator], xi: Tensor, signs: Tensor | None, *, pilot: bool
    ) -> list[Tensor]:
        """SᵀHS ξ averaged over the data; a pilot also notes how the parts of the data differ."""
        surface, metric = self.products.surface, self.metric
        before = surface.cost
        vectors = metric.lift(xi)
        requests = [Request(operator, metric.space, vectors) for operator in operators]
        sums = [torch.zeros_like(xi, dtype=torch.float64) for _ in operators]
        total = torch.zeros((), dtype=torch.float64, device=xi.device)
        parts = [Moments(metric.rows, xi.device) for _ in operators]
        with surface.processes.together():
            chunk = self.cluster if pilot else None
            for weight, found in self.products.by_chunk(requests, chunk=chunk):
                total += weight
                for i, rows in enumerate(found):
                    image = metric.drop(rows)
                    sums[i] += image
                    if pilot and signs is not None:
                        values = metric.by_row(signs, image).mean(dim=0)[:, None]
                        parts[i].add(values, values.new_full((1,), weight))
        surface.processes.sum_(total, *sums)
        if pilot and signs is not None:
            for operator, moments in zip(operators, parts, strict=True):
                moments.reduce(surface.processes)
                # never added up over draws: a loader may shuffle, and its parts are others then
                if len(xi) > self._looked.get(operator, 0):
                    self.parts[operator], self._looked[operator] = moments, len(xi)
        self.cost += surface.processes.total_cost(surface.cost - before)
        return [(held / total).to(xi.dtype) for held in sums]

    def _deflated(self, rows: Tensor) -> Tensor:
        """Without what lies in the space that Hutch++ knows."""
        if self._basis is None:
            return rows
        basis = self._basis
        return rows - (rows @ basis.T) @ basis

    def _note(self, operator: Operator, signs: Tensor, images: Tensor) -> None:
        self.values.setdefault(operator, []).extend(self.metric.by_row(signs, images))
        if self.metric.kind == "rho":
            found = signs.double() * images.double()
            if self.known is not None:
                found = found + self.known
            self.elements.setdefault(operator, []).extend(found)


def next_count(
    estimate: Estimate, part: Estimate, count: int, *, rtol: float, confidence: float
) -> float:
    """How many probes in all would have sufficed, if `count` gave `part` of `estimate`.

    >>> whole = Estimate(10.0, variance=1.0)
    >>> round(next_count(whole, whole, 10, rtol=0.1, confidence=0.95))      # (1.96 / 1)² · 10
    38
    """
    margin = rtol * abs(estimate.value)
    if margin == 0.0:
        return math.inf
    quantile = estimate.half_width(confidence) / estimate.stderr if estimate.variance else 0.0
    allowed = (margin / quantile) ** 2 if quantile else math.inf
    rest = allowed - (estimate.variance - part.variance)  # what the other parts leave of it
    return count * part.variance / rest if rest > 0 else math.inf


def promised_count(count: float, estimate: Estimate) -> int:
    """A number of probes to promise, if `count` is what `estimate` says would suffice.

    The tolerance is relative, and the value itself may have come out too large by chance: then it
    takes more. Nine times in ten the value is not below what is reckoned with here.

    >>> sharp, vague = Estimate(10.0, 0.01, dof=18), Estimate(10.0, 1.0, dof=18)
    >>> promised_count(100, sharp), promised_count(100, vague)
    (153, 196)
    """
    lowest = max(0.1, 1.0 - 1.3 * estimate.stderr / abs(estimate.value))  # two probes tell little
    return cautious_count(count / lowest**2, estimate.dof)
