"""Tr(H²) = E‖Hz‖² for random signs z, to the precision that was asked for.

The error from having these samples only: with H the mean of H_n over the samples, a small change dH
changes Tr(H²) by 2⟨H, dH⟩. So it is twice the standard error of the mean of ⟨H, H_n⟩, and that is
E⟨Hz, H_n z⟩: the parts of the data differ in it, and the products of the first look are enough.
"""

from __future__ import annotations

import functools
import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ..math.signs import random_signs
from .estimate import Estimate, of_repetitions
from .moments import Moments
from .products import Request, Space
from .weight_probes import CLUSTERS, GROWTH, PILOT, VECTOR_BYTES, next_count
from .work import Work

_STREAM = 1003  # of random signs: next to those of the other weight probes
_FOLDING = 1004
FOLDED = 1024  # numbers that are kept of H_n z: their products are off by 1/√1024, and average out
MOST_PARTS = 4 * CLUSTERS


def trace_squared(work: Work) -> tuple[Estimate, int]:
    """Over all measured parameters, and how many probes it took."""
    asked, probes = work.precision, _Probes(work)
    probes.draw(max(2, min(PILOT, asked.max_passes)))
    while True:
        found = of_repetitions(probes.values, probes.data_variance)
        count = len(probes.values)
        if not found.variance or found.within(asked.rtol, asked.confidence):
            return found, count
        enough = next_count(found, found, count, rtol=asked.rtol, confidence=asked.confidence)
        more = math.ceil(1.05 * min(enough, GROWTH * count)) - count
        more = min(max(more, 1), asked.max_passes - count)
        if more <= 0:
            return found, count
        probes.draw(more)


class _Probes:
    """‖Hz‖² of every probe so far, and the data error that the first look gives."""

    def __init__(self, work: Work) -> None:
        self.surface, self.products, self.seed = work.surface, work.products, work.seed
        self.space = Space(work.surface)
        self.values: list[float] = []
        self.data_variance: float | None = None  # None for one part of the data
        self._looked = 0  # probes that it rests on
        self._cluster = max(1, math.ceil(work.num_samples / CLUSTERS))

    def draw(self, count: int) -> None:
        """`count` more probes."""
        held = max(1, VECTOR_BYTES // (16 * self.space.size))
        first_look = not self.values
        while count > 0:
            part = min(count, held)
            first = len(self.values)
            numbers = torch.arange(first, first + part, device=self.space.device)
            signs = random_signs(self.seed, _STREAM, numbers, self.space.size, self.space.dtype)
            request = Request("hessian", self.space, signs)
            if first_look:
                images = self._by_parts(request)
            else:
                (images,) = self.products.multiply([request])
            self.values.extend(images.double().square().sum(dim=1).tolist())
            count -= part

    def _by_parts(self, request: Request) -> Tensor:
        """The products, noting how the parts of the data differ."""
        processes = self.surface.processes
        sums = torch.zeros_like(request.vectors, dtype=torch.float64)
        total = torch.zeros((), dtype=torch.float64, device=sums.device)
        parts: list[Tensor] = []
        weights: list[float] = []
        with processes.together():
            for weight, (found,) in self.products.by_chunk([request], chunk=self._cluster):
                total += weight
                sums += found
                parts.append(self._folded(found))
                weights.append(weight)
                if len(parts) == MOST_PARTS:  # neighbours go together: memory stays bounded
                    parts = [a + b for a, b in zip(parts[::2], parts[1::2], strict=True)]
                    weights = [a + b for a, b in zip(weights[::2], weights[1::2], strict=True)]
        processes.sum_(total, sums)
        images = sums / total
        moments = Moments(["all"], sums.device)
        if parts:
            whole = self._folded(images)
            values = torch.stack([(part * whole).sum(dim=1).mean() for part in parts])
            moments.add(values[None], torch.tensor(weights, dtype=torch.float64).to(values))
        moments.reduce(processes)
        stderr = moments.stderr(["all"])
        if stderr is not None and len(sums) > self._looked:
            self.data_variance, self._looked = (2 * stderr) ** 2, len(sums)
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
