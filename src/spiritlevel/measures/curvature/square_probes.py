"""Tr(H²) = E‖Hz‖² for random signs z, to the precision that was asked for.

A few large eigenvalues decide the trace of a square, and the error of a probe with it: of a trained
network a thousand probes may miss 5 %. So the dominant directions are taken out first where probes
alone would take long (`LanczosDeflation`): those that eigenvalues of the same call have found, or
the space of the images of the first probes, as in Hutch++. With orthonormal rows Q and P = 1 − QᵀQ,
the squares of H, block by block, are

    Tr H² = 2‖HQᵀ‖² − ‖QHQᵀ‖² + Tr (PHP)²

and only the last term takes probes: E‖PHPz‖². Any basis is allowed, and one of the dominant
directions leaves little: they are in the images of random vectors, and in what Lanczos has built.

The sampling error, from having only these samples: with H the mean of H_n over the samples, a small
change dH changes Tr(H²) by 2⟨H, dH⟩. So it is twice the standard error of the mean of ⟨H, H_n⟩, and
that is E⟨Hz, H_n z⟩: the parts of the data differ in it, and the products of the first look are
enough.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from ...engine.estimate import Estimate, estimate_from_repetitions
from ...engine.moments import Moments
from ...engine.precision import Precision
from ...engine.refine import (
    AbstractDraws,
    Outlook,
    advice,
    is_precise,
    promised_count,
    refine,
    sufficient_count,
)
from ...engine.weight_space.eigenvalues import BASIS_BYTES
from ...engine.weight_space.lanczos import Subspace
from ...engine.weight_space.long_rows import columns, inner, orthonormal, outside, squared_norms
from ...engine.weight_space.parameter_space import ParameterSpace
from ...engine.weight_space.probes import CLUSTERS, PILOT, ROUND_OFF, VECTOR_BYTES
from ...engine.weight_space.products import ImageSums, Request
from ...engine.workspace import Workspace
from ...math.signs import random_signs

_STREAM = 1003  # of random signs: next to those of the other weight probes
_FOLDING = 1004
FOLDED = 1024  # numbers that are kept of H_n z: their products are off by 1/√1024, and average out
MOST_PARTS = 4 * CLUSTERS
LOOK_VECTORS = 2  # memory of a probe, in products of a plain vector
LEAST_SKETCH = 4  # directions; fewer take out too little
AFTER_SKETCH = 8  # probes of what a sketch leaves, before the first look at it
OUTSIDE = 12  # the same where directions are known from the start: the data error rests on them too


@dataclasses.dataclass(frozen=True)
class Square:
    """Tr(H²) and how it was found; `missed` says what to do where it is not precise enough."""

    estimate: Estimate
    text: str
    missed: str = ""


def trace_squared(workspace: Workspace, subspace: Subspace | None = None) -> Square:
    """Over all measured parameters; `subspace` is that of the eigenvalues, if there is one."""
    asked = workspace.precision
    probes = _SquareProbes(workspace, None if subspace is None else LanczosDeflation(subspace))
    estimate = refine(probes, asked)
    if estimate.unknown:
        missed = f"so few probes give no interval; max_passes={PILOT} would give one."
        return Square(estimate, probes.text, missed)
    if is_precise(estimate, asked):
        return Square(estimate, probes.text)
    reasons = [probes.reason_for_more(asked), advice(probes, asked)]
    return Square(estimate, probes.text, "; ".join(filter(None, reasons)))


class _SquareProbes(AbstractDraws):
    """Squares of every probe so far, and the data error that the first look gives."""

    def __init__(self, workspace: Workspace, deflation: LanczosDeflation | None) -> None:
        self.surface, self.products, self.seed = (
            workspace.surface,
            workspace.products,
            workspace.seed,
        )
        self.space = ParameterSpace(workspace.surface)
        self._memory = workspace.products.memory.halved  # the known directions have the other half
        self.pilot = PILOT if deflation is None else OUTSIDE
        self.values: list[float] = []  # ‖Hz‖², or ‖PHPz‖² where some directions are known
        self._passes = 0
        self.data_variance: float | None = None  # None for one part of the data
        self._known: Deflation | None = deflation
        self._sketch: Tensor | None = None  # images of the first look, for the dominant directions
        self._drawn = self._sketched = 0
        self._looked = 0  # probes that the data error rests on
        self._cluster = max(1, math.ceil(workspace.num_samples / CLUSTERS))

    @property
    def text(self) -> str:
        """How many probes there were, and what was taken out before."""
        text = f"{len(self.values)} weight probes"
        if self._sketched:
            text = f"{text} after {self._sketched} dominant directions"
        elif self._known is not None:
            text = f"{text} outside the {len(self._known.basis)} directions of the eigenvalues"
        return "; ".join(filter(None, (text, self.products.remark)))

    @property
    def count(self) -> int:
        """Probes that the estimate rests on: those before a sketch have made its basis."""
        return len(self.values)

    @property
    def passes(self) -> int:
        """Products so far, with those that a sketch took."""
        return self._passes

    @property
    def sketch_size(self) -> int:
        """Directions that a sketch would take out, and products that it would cost."""
        return 0 if self._sketch is None else len(self._sketch)

    @property
    def room(self) -> int:
        """How many directions fit into memory, with the products that make use of them."""
        if self._memory.limit is None:
            return BASIS_BYTES // (4 * self.space.size)
        return self._memory.vectors(BASIS_BYTES, self.space.size, self.space.dtype)

    def estimate(self) -> Estimate:
        """Tr(H²)."""
        whole = self.drawn_part()
        if self._known is not None:
            whole = Estimate(self._known.value, data_variance=0.0) + whole
        if whole.stderr <= ROUND_OFF * abs(whole.value):  # the basis is all of H
            whole = dataclasses.replace(whole, variance=0.0)
        return whole

    def drawn_part(self) -> Estimate:
        """The part of it that probes are needed for.

        Of all of H, fewer than PILOT probes leave the error unknown: their values are skewed, and
        signs may all agree on a wrong one.
        """
        rest = estimate_from_repetitions(self.values, self.data_variance)
        if self._known is None and len(self.values) < PILOT:
            rest = dataclasses.replace(rest, variance=math.inf)
        return rest

    def shortcut(self, outlook: Outlook) -> bool:
        """A sketch, where it pays and the passes allow it."""
        if not self._sketch_pays(outlook.enough - self.count):
            return False
        if self.sketch_size + AFTER_SKETCH > outlook.left:
            return False
        self._take_out()
        self.draw(AFTER_SKETCH)
        return True

    def promised(self, enough: float, estimate: Estimate) -> int:
        """Their errors are not widened for values that are too small by chance."""
        return promised_count(enough, estimate)

    def reason_for_more(self, asked: Precision) -> str:
        """From how many passes on a sketch would be taken; empty if it would not pay."""
        if not self._sketch_pays(sufficient_count(self, asked) - self.count):
            return ""
        least = PILOT + min(PILOT, self.room) + AFTER_SKETCH
        return f"from max_passes={least} on the dominant directions are taken out first"

    def _sketch_pays(self, more: float) -> bool:
        """Whether it would be cheaper than so many probes more, if it leaves them little to do."""
        return self.sketch_size >= LEAST_SKETCH and more > 2 * self.sketch_size

    def _take_out(self) -> None:
        assert self._sketch is not None
        images, self._sketch = self._sketch, None
        before = len(images)
        self._known = sketched(images, self._multiply)
        self._sketched = len(self._known.basis)
        self._passes += before
        self.values.clear()  # those probes have made the basis, and would look small in its light

    def draw(self, count: int) -> None:
        """Take `count` more probes."""
        size = LOOK_VECTORS * self.space.size
        most = self._memory.vectors(VECTOR_BYTES, size, self.space.dtype)
        first_look = not self._drawn
        while count > 0:
            part = min(count, most)
            numbers = torch.arange(self._drawn, self._drawn + part, device=self.space.device)
            signs = random_signs(self.seed, _STREAM, numbers, self.space.size, self.space.dtype)
            self.values.extend((self._first if first_look else self._later)(signs).tolist())
            self._drawn += part
            self._passes += part
            count -= part

    def _first(self, signs: Tensor) -> Tensor:
        """The first probes, with whole images: the data error needs them, and a sketch may."""
        images = self._by_parts(Request("hessian", self.space, signs))
        if isinstance(self._known, LanczosDeflation):
            return self._known.squares_of_plain(signs, images)
        first_images = images[: max(0, self.room - self.sketch_size)]
        self._sketch = (
            first_images if self._sketch is None else torch.cat([self._sketch, first_images])
        )
        return squared_norms(images)

    def _later(self, signs: Tensor) -> Tensor:
        if self._known is None:
            return squared_norms(self._multiply(signs))
        return self._known.squares(self._multiply(self._known.probes(signs)))

    def _multiply(self, vectors: Tensor) -> Tensor:
        (images,) = self.products.multiply([Request("hessian", self.space, vectors)])
        return images

    def _by_parts(self, request: Request) -> Tensor:
        """The products of a request, noting how the parts of the data differ."""
        processes = self.surface.processes
        sums = ImageSums(request.vectors)
        total = torch.zeros((), dtype=torch.float64, device=request.vectors.device)
        parts: list[Tensor] = []
        weights: list[float] = []
        with processes.together():
            for weight, (found,) in self.products.by_chunk([request], chunk=self._cluster):
                total += weight
                sums.add(found)
                parts.append(self._folded(found.rows))
                weights.append(weight)
                if len(parts) == MOST_PARTS:  # neighbours go together: memory stays bounded
                    parts = [a + b for a, b in zip(parts[::2], parts[1::2], strict=True)]
                    weights = [a + b for a, b in zip(weights[::2], weights[1::2], strict=True)]
        images = self.products.summed(total, [sums])[0].rows
        moments = Moments(["all"], images.device)
        if parts:
            whole = self._folded(images)
            values = torch.stack([(part * whole).sum(dim=1).mean() for part in parts])
            moments.add(values[None], torch.tensor(weights, dtype=torch.float64).to(values))
        moments.reduce(processes)
        stderr = moments.stderr(["all"])
        if stderr is not None and len(images) > self._looked:
            self.data_variance, self._looked = (2 * stderr) ** 2, len(images)
        return images.to(request.vectors.dtype)

    def _folded(self, rows: Tensor) -> Tensor:
        """(count, FOLDED) sums of entries with random signs: inner products stay, on average."""
        if self.space.size <= FOLDED:
            return rows.double()
        fill = (0, -self.space.size % FOLDED)
        return torch.stack(
            [F.pad(row.double() * self._signs, fill).view(-1, FOLDED).sum(dim=0) for row in rows]
        )

    @functools.cached_property
    def _signs(self) -> Tensor:
        zero = torch.zeros(1, device=self.space.device)
        return random_signs(self.seed, _FOLDING, zero, self.space.size, self.space.dtype)[0]


class Deflation:
    """A basis Q, and the part of Tr(H²) that it accounts for."""

    def __init__(self, basis: Tensor, value: float) -> None:
        """`value` is that part: 2‖HQᵀ‖² − ‖QHQᵀ‖²."""
        self.basis, self.value = basis, value

    def probes(self, signs: Tensor) -> Tensor:
        """Pz, to be multiplied by H instead of z."""
        return outside(signs, self.basis)

    def squares(self, images: Tensor) -> Tensor:
        """‖PHPz‖² for each row HPz of `images`."""
        return squared_norms(outside(images, self.basis))


class LanczosDeflation(Deflation):
    """From a Lanczos run: HQᵀ = QᵀT + RᵀC, so that no further product is needed."""

    def __init__(self, subspace: Subspace) -> None:
        """`known` is read for as long as there are probes."""
        C = subspace.coupling
        super().__init__(subspace.basis, float(subspace.T.square().sum() + 2 * C.square().sum()))
        self._beyond, self._coupling = subspace.beyond, C

    def squares_of_plain(self, signs: Tensor, images: Tensor) -> Tensor:
        """‖PHPz‖² from Hz itself: PHPz = PHz − RᵀCQz."""
        along = inner(signs, self.basis) @ self._coupling.T.to(signs.device)
        rest = outside(images, self.basis).double()
        for part in columns(len(rest) + len(self._beyond), rest):
            rest[:, part] -= along @ self._beyond[:, part].double()
        return squared_norms(rest)


def sketched(images: Tensor, multiply: Callable[[Tensor], Tensor]) -> Deflation:
    """From H times random rows, which are overwritten, and as many products again."""
    basis = orthonormal(images)
    products = multiply(basis)
    whole, inside = inner(products, products).trace(), inner(products, basis).square().sum()
    return Deflation(basis, float(2 * whole - inside))
