"""Probes in weight space: Hutchinson, Hutch++, and Hutchinson on the residual H − GGN alone.

The error of a probe is that of the whole matrix, whatever the number of samples. So it pays to
remove from the matrix what is known already: the GGN, which the sweep gives exactly or nearly so,
or the dominant directions, which Hutch++ finds from a few products (Meyer et al. 2021).

Many probes are random signs, which vary least. Their spread shows how far off their mean may be.
Of a few probes it does not: signs take few values in a small matrix, and may all agree on a wrong
one. Few probes are therefore normal vectors, whose variance is known from the images: Var⟨ξ, Bξ⟩ is
2‖B‖², and E‖Bξ‖² = ‖B‖². That is 0 only for B = 0. It is worst for a matrix with one direction,
where the interval from `count` degrees of freedom covers the truth in 95 % of the cases for any
count; for other matrices it is wider than needed.

In a small matrix all directions may cost less than the probes that are needed: a product with each
of them leaves nothing to chance.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from ...records.measurements import Cost
from ..estimate import Estimate, estimate_from_repetitions
from ..moments import without_noise
from ..row_probes import AbstractRowProbes
from ..sweep.sums import Factors, RowSums
from .chunk_products import Images, Operator
from .long_rows import columns, inner, squared_norms
from .metrics import Metric
from .products import ImageSums, Products, Request

PILOT = 32  # probes to start with: fewer are normal vectors instead of signs
# Probes of each of two operators before the first choice between them. That may cost less than a
# fifth of the probes of either alone, and 32 of one may be all that is needed.
GLANCE = 6
CLUSTERS = 16  # parts of the data whose spread gives the sampling error
ROUND_OFF = 1e-13  # of a value: a smaller error is one of floating-point arithmetic
VECTOR_BYTES = 1 << 28  # for the directions and products of one pass
# Memory of a probe, and of a direction that Hutch++ takes out, in products of a plain vector: ξ and
# its image are there as well, and the directions are made orthogonal in float64.
PROBE_VECTORS, SKETCH_VECTORS = 2, 3


@dataclasses.dataclass(frozen=True)
class _Parts:
    """What some probes gave for each part of the data: one ξ for all of them."""

    sums: RowSums  # with a part for a sample
    values: Tensor  # of all the data, shape: (probes, rows)

    def data_variance(self, factors: Factors, *, drawn: bool) -> float | None:
        """Of the sampling error; None for a single part, and where noise hides it.

        What is common to the noise of all parts does not make them differ. `drawn` says whether
        there is noise at all.
        """
        moments, probes = self.sums.between, len(self.values)
        if moments.count < 2 or (drawn and probes < 2):
            return None
        names, values = list(factors), list(factors.values())
        spread, noise = moments.stderr(names, values), 0.0
        assert spread is not None
        if drawn:
            c = moments.combination(names, values)
            common = float((self.values @ c).var()) / probes * float(moments.weights[1])
            scale = moments.count / (moments.count - 1) / moments.total_weight**2
            noise = scale * (self.sums.noise(factors, probes) - common)
        dof = (probes - 1) * (moments.count - 1)
        return without_noise(spread**2, noise, count=moments.count, dof=dof)


class WeightProbes(AbstractRowProbes):
    """All probes of one metric so far, of one or several operators."""

    text = "weight probes"
    glance, pilot = GLANCE, PILOT
    least = 1  # that are drawn at a time

    def __init__(
        self, products: Products, metric: Metric, *, seed: int, num_samples: int, few: bool = False
    ) -> None:
        """`num_samples` is the size of the whole data set; `few` says that signs would not do."""
        self.products, self.metric, self.seed, self.few = products, metric, seed, few
        self.cluster = max(1, math.ceil(num_samples / CLUSTERS))
        self.values: dict[Operator, list[Tensor]] = {}  # one tensor of shape (rows,) per probe
        self.parts: dict[Operator, _Parts] = {}  # the pilot's values by part of the data
        # ‖Bξ‖² within each row: in few probes it gives the variance of the values
        self.squares: dict[Operator, list[Tensor]] = {}
        # of each probe, for ρ(j) of every neuron: ξ∘Bξ and, in few probes, (Bξ)∘(Bξ)
        self.elements: dict[Operator, list[Tensor]] = {}
        self.element_squares: dict[Operator, list[Tensor]] = {}
        # of each probe by differences of gradients: how far its values may be off
        self.doubts: dict[Operator, list[Tensor]] = {}
        self.exact_part: Tensor | None = None  # of ξ∘Bξ, from Hutch++, shape: (size,)
        self._basis: Tensor | None = None
        self._complete: set[Operator] = set()  # multiplied with every direction
        self._replaced = 0  # probes that the directions made needless
        self._drawn = 0
        self.cost = Cost()

    @property
    def operators(self) -> Collection[Operator]:
        """The operators that were probed so far."""
        return self.values

    def count(self, operator: Operator) -> int:
        """Probes of an operator so far; each took one pass over the data."""
        return len(self.values.get(operator, ()))

    @property
    def remark(self) -> str:
        """How the products were formed, if that matters."""
        return self.products.remark

    @property
    def passes(self) -> int:
        """Products so far, of all operators and of the sketch."""
        taken = sum(len(values) for values in self.values.values())
        return 2 * self.sketched + self._replaced + taken

    @property
    def sketched(self) -> int:
        """How many dominant directions Hutch++ has removed."""
        return 0 if self._basis is None else len(self._basis)

    def draw(self, operators: Sequence[Operator], count: int) -> None:
        """Draw `count` more probes, with the same ξ for each operator."""
        pilot = self._basis is None and min(map(self.count, operators)) < PILOT
        while count > 0:
            part = min(count, self._vectors_per_pass())
            xi = self.metric.draw(self.seed, self._drawn, part, normal=self.few)
            images = self._multiply(operators, self._deflated(xi), xi, pilot=pilot)
            for operator, rows in zip(operators, images, strict=True):
                self._record(operator, xi, self._deflated(rows))
            self._drawn += part
            count -= part

    @property
    def directions(self) -> int | None:
        """How many products leave nothing to chance; None if they do not fit into one pass."""
        return self.metric.size if self.metric.size <= self._vectors_per_pass() else None

    def complete(self, operator: Operator) -> bool:
        """Whether it was multiplied with every direction."""
        return operator in self._complete

    def take_all(self, operator: Operator) -> None:
        """Multiply every direction once, instead of random ones."""
        size, space = self.metric.size, self.metric.space
        # as long as a vector of signs, so that the mean over all is the sum over all directions
        xi = math.sqrt(size) * torch.eye(size, dtype=space.dtype, device=space.device)
        self._replaced += self.count(operator)
        for kept in (self.values, self.squares, self.elements, self.element_squares, self.doubts):
            kept.pop(operator, None)
        self.parts.pop(operator, None)
        (images,) = self._multiply([operator], xi, xi, pilot=True)
        self._record(operator, xi, images)
        self._complete.add(operator)

    def sketch(self, operator: Operator, count: int) -> None:
        """Hutch++: multiply random vectors, and take the matrix exactly on the span of images.

        Where memory is limited, only as many directions as fit are taken out.
        """
        count = self._fitting(count)
        xi = self.metric.draw(self.seed, self._drawn, count, normal=self.few)
        self._drawn += count
        (images,) = self._multiply([operator], xi, xi, pilot=True)
        basis, _ = torch.linalg.qr(images.double().T)
        basis = basis.T.contiguous().to(images.dtype)
        (image,) = self._multiply([operator], basis, None, pilot=False)
        self._basis = basis
        # the diagonal of H = PHP + QQᵀH + HQQᵀ − QQᵀHQQᵀ, without that of PHP
        small = inner(image, basis)
        exact = torch.empty(basis.shape[1], dtype=torch.float64, device=basis.device)
        for part in columns(3 * count, basis):
            q = basis[:, part].double()
            exact[part] = (2 * q * image[:, part].double() - q * (small @ q)).sum(dim=0)
        self.exact_part = exact

    def estimate(self, operator: Operator, factors: Factors) -> Estimate:
        """Σ over rows of factor × E⟨ξ, Bξ⟩."""
        values, c = self._combined(operator, factors)
        data = None
        if operator in self.parts:
            data = self.parts[operator].data_variance(factors, drawn=not self.complete(operator))
        doubt = self._doubt(operator, c)
        if self.complete(operator):
            mean = math.fsum(values) / len(values)
            return Estimate(mean, doubt**2, data_variance=data, drawn=doubt > 0.0)
        squares = torch.stack(self.squares[operator]).cpu() @ c.square() if self.few else None
        estimate = _mean_of(values, squares, data)
        if self.exact_part is not None:
            ones = torch.ones_like(self.exact_part)[None]
            by_row = self.metric.by_row(self.exact_part[None], ones)[0].cpu()
            estimate = Estimate(float(by_row @ c), data_variance=0.0) + estimate
        if estimate.stderr <= ROUND_OFF * abs(estimate.value):  # Hutch++ has the whole matrix
            estimate = dataclasses.replace(estimate, variance=0.0)
        return dataclasses.replace(estimate, variance=estimate.variance + doubt**2)

    def _doubt(self, operator: Operator, factors: Tensor) -> float:
        """How far the mean may be off because products are differences; 0 if they are not."""
        if operator not in self.doubts:
            return 0.0
        return float((torch.stack(self.doubts[operator]) @ factors.abs()).mean())

    def spread(self, operator: Operator, factors: Factors, count: int) -> float:
        """The variance of one probe, from the first `count` probes."""
        values, c = self._combined(operator, factors)
        squares = torch.stack(self.squares[operator]).cpu() @ c.square() if self.few else None
        first = None if squares is None else squares[:count]
        return _mean_of(values[:count], first, None).variance * count

    def neurons(self, operator: Operator, row: str) -> list[Estimate]:
        """ρ(j) of a layer: entries of E ξ∘Bξ, which are recorded for ρ alone."""
        entries = self.metric.parts[row]
        by_element = torch.stack([v[entries] for v in self.elements[operator]]).T.tolist()
        _, c = self._combined(operator, {row: 1.0})
        doubt = self._doubt(operator, c)  # of all the layer's neurons together
        if self.complete(operator):
            means = [math.fsum(values) / len(values) for values in by_element]
            return [Estimate(mean, doubt**2, drawn=doubt > 0.0) for mean in means]
        if not self.few:
            found = [estimate_from_repetitions(values) for values in by_element]
        else:
            squares = torch.stack([v[entries] for v in self.element_squares[operator]]).T.cpu()
            found = [_mean_of(*pair, None) for pair in zip(by_element, squares, strict=True)]
        return [dataclasses.replace(each, variance=each.variance + doubt**2) for each in found]

    def _combined(self, operator: Operator, factors: Factors) -> tuple[list[float], Tensor]:
        """Σ factor × row for every probe, and the factors as a vector."""
        index = {name: i for i, name in enumerate(self.metric.rows)}
        c = torch.zeros(len(index), dtype=torch.float64)
        for name, factor in factors.items():
            c[index[name]] = factor
        return (torch.stack(self.values[operator]).cpu() @ c).tolist(), c

    def _vectors_per_pass(self) -> int:
        size = max(self.metric.space.size, self.metric.size)
        dtype = self.metric.space.dtype
        return self.products.memory.vectors(VECTOR_BYTES, PROBE_VECTORS * size, dtype)

    def _fitting(self, directions: int) -> int:
        """So many directions of a sketch, or as many as a limit of the memory allows."""
        memory, size = self.products.memory, max(self.metric.space.size, self.metric.size)
        if memory.limit is None:
            return directions
        most = memory.vectors(memory.limit, SKETCH_VECTORS * size, self.metric.space.dtype)
        return min(directions, most)

    def _multiply(
        self, operators: Sequence[Operator], xi: Tensor, left: Tensor | None, *, pilot: bool
    ) -> list[Tensor]:
        """SᵀHS ξ averaged over the data.

        A pilot also records ⟨left, SᵀHS ξ⟩ by part of the data.
        """
        surface, metric = self.products.surface, self.metric
        before = surface.cost
        vectors = metric.lift(xi)
        requests = [Request(operator, metric.space, vectors) for operator in operators]
        sums = [ImageSums(xi) for _ in operators]
        total = torch.zeros((), dtype=torch.float64, device=xi.device)
        parts = [RowSums(metric.rows, xi.device) for _ in operators]
        with surface.processes.together():
            chunk = self.cluster if pilot else None
            for weight, images in self.products.by_chunk(requests, chunk=chunk):
                total += weight
                for i, found in enumerate(images):
                    image = metric.drop(found.rows)
                    gaps = None if found.gaps is None else metric.drop(found.gaps)
                    sums[i].add(Images(image, gaps, found.rounding))
                    if pilot and left is not None:
                        values = metric.by_row(left, image)[:, :, None]
                        parts[i].add(list(values), values.new_full((1,), weight))
        whole = self.products.summed(total, sums)
        for operator, each in zip(operators, whole, strict=True):
            if each.gaps is not None and left is not None:
                self._keep_doubts(operator, left, vectors, each)
        if pilot and left is not None:
            for operator, part_sums, each in zip(operators, parts, whole, strict=True):
                part_sums.reduce(surface.processes)
                # not added up over draws: if a loader shuffles, its parts are not the same again
                if operator not in self.parts or len(xi) > len(self.parts[operator].values):
                    values = metric.by_row(left, each.rows).cpu()
                    self.parts[operator] = _Parts(part_sums, values)
        self.cost += surface.processes.total_cost(surface.cost - before)
        return [each.rows.to(xi.dtype) for each in whole]

    def _keep_doubts(
        self, operator: Operator, left: Tensor, vectors: Tensor, images: Images
    ) -> None:
        """Note by row how far ⟨left, image⟩ may be off, as the image is a difference."""
        assert images.gaps is not None
        assert images.rounding is not None
        # of a random vector, a rounding that knows nothing of it sees what an entry has
        rounding = 2 * images.rounding * (squared_norms(vectors) / vectors.shape[1]).sqrt()
        by_row = self.metric.by_row(left, images.gaps).abs() + rounding[:, None]
        self.doubts.setdefault(operator, []).extend(by_row.cpu())

    def _deflated(self, rows: Tensor) -> Tensor:
        """The rows without their part in the space that Hutch++ has removed."""
        if self._basis is None:
            return rows
        basis = self._basis
        return rows - (rows @ basis.T) @ basis

    def _record(self, operator: Operator, xi: Tensor, images: Tensor) -> None:
        self.values.setdefault(operator, []).extend(self.metric.by_row(xi, images))
        if self.few:
            self.squares.setdefault(operator, []).extend(self.metric.by_row(images, images))
        if self.metric.kind == "rho":
            elements = xi.double() * images.double()
            if self.exact_part is not None:
                elements = elements + self.exact_part
            self.elements.setdefault(operator, []).extend(elements)
            if self.few:
                squares = images.double().square()
                self.element_squares.setdefault(operator, []).extend(squares)


def _mean_of(values: list[float], squares: Tensor | None, data_variance: float | None) -> Estimate:
    """The mean of some probes; `squares` are ‖Bξ‖² of normal ones, None for signs."""
    if squares is None:
        return estimate_from_repetitions(values, data_variance)
    count = len(values)
    variance = 2.0 * float(squares.mean()) / count
    return Estimate(math.fsum(values) / count, variance, float(count), data_variance, drawn=True)
