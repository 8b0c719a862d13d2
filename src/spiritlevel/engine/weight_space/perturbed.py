"""Loss and gradient at weights other than the network's own, over all data or a part of it.

Gaussian noise on the weights is reproducible by number. A draw is a noise vector together with its
negative: the mean of the two has no term linear in the noise, which would otherwise be the largest
part of the error. A vector depends only on the seed and its number, so it is the same at every
scale, for any batches and for every measure. As many as fit are kept in memory.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, cast

import torch
from torch import Tensor

from ...model import batches as _batches
from ...model.arithmetic import full_precision
from ...model.batches import BatchLocation
from ...model.losses import CrossEntropy
from ...model.output_checks import refuse_unless_counted
from ...model.surface import Surface
from ...records.measurements import Cost
from .parameter_space import ParameterSpace
from .probes import VECTOR_BYTES

Weights = dict[str, Tensor]  # by parameter name; those left out stay as they are
Score = Callable[[Tensor, Tensor], Tensor]  # outputs and targets to Σ over the batch, float64
OVERFLOW = 1e30  # used as the loss of a network that overflows
ROUND_OFF = 4  # units in the last place to which a mean loss is accurate

Part = list[tuple[BatchLocation, Any]]  # batches that are measured together
Target = Literal["loss", "error"]
CACHE_BYTES = 1 << 28  # of noise: drawing it again takes as long as a pass


@dataclasses.dataclass(frozen=True)
class LossAndGradient:
    """The mean loss, and its gradient in the measured parameters in float64."""

    loss: float
    gradient: Weights
    weight: float  # what the sums were divided by; 0 if no target counts


class PerturbedLoss:
    """The loss as a function of the weights; every point is one pass over the data.

    Differences of losses suffer from cancellation. Sums are taken in float64, from outputs in the
    network's own precision: in float32 a loss is accurate to about 1e-7 of its size, so a rise of
    1e-4 of the loss has three digits.
    """

    def __init__(self, surface: Surface, *, chunk: int, gradient_chunk: int) -> None:
        """Samples to run through the network at a time, without and with a backward."""
        self.surface = surface
        self.chunk, self.gradient_chunk = chunk, gradient_chunk
        self.space = ParameterSpace(surface)

    @functools.cached_property
    def flat_weights(self) -> Tensor:
        """The measured parameters as one vector, in float64."""
        return flatten_weights(self.weights)

    def displaced(self, step: Tensor) -> Weights:
        """The weights plus a step, in the parameters' own types."""
        return self.space.split(self.flat_weights + step)

    @property
    def weights(self) -> Weights:
        """The measured parameters, unperturbed."""
        return {name: p.detach() for name, p in self.surface.parameters.items()}

    @functools.cached_property
    def unperturbed(self) -> LossAndGradient:
        """Loss and gradient at the network's own weights, computed once."""
        return self.loss_and_gradient({})

    @functools.cached_property
    def unperturbed_loss(self) -> float:
        """As `losses` computes it; in float32 `unperturbed.loss` may differ in the last digit."""
        return self.losses([{}])[0]

    @functools.cached_property
    def unperturbed_error(self) -> float:
        """The share of wrongly predicted targets at the network's own weights."""
        return self.errors([{}])[0]

    def round_off(self, loss: float) -> float:
        """The accuracy of a mean loss of this size."""
        return ROUND_OFF * torch.finfo(self.surface.dtype).eps * abs(loss)

    def losses(self, points: Sequence[Weights]) -> list[float]:
        """The mean loss at each point; every chunk of data is run at all points in turn."""
        return self.scores(points, self._loss_sums)

    def errors(self, points: Sequence[Weights]) -> list[float]:
        """The share of wrongly predicted targets at each point, weighted as in the loss."""
        return self.scores(points, self._error_sums)

    def scores(self, points: Sequence[Weights], score: Score) -> list[float]:
        """Σ score / Σ weight over the data at each point.

        If a network overflows at a point, its loss counts as very large and its targets as missed.
        """
        surface = self.surface
        sums = torch.zeros(len(points) + 1, dtype=torch.float64, device=surface.device)
        with torch.no_grad(), full_precision(), surface.processes.together():
            for where, batch in surface.chunks(self.chunk):
                for i, point in enumerate(points):
                    outputs, targets = surface.outputs(
                        batch, where=where, parameters=point, may_overflow=bool(point)
                    )
                    sums[i] += score(outputs, targets)
                sums[-1] += surface.loss.weights(outputs, targets).double().sum()
        surface.processes.sum_(sums)
        return (sums[:-1] / sums[-1]).tolist()

    def loss_and_gradient(self, point: Weights) -> LossAndGradient:
        """Loss and gradient at a point, over the data of all processes."""
        surface = self.surface
        with surface.processes.together():
            total, sums = self._sums(point, surface.chunks(self.gradient_chunk))
        surface.processes.sum_(total, *sums.values())
        means = _means(total, sums)
        refuse_unless_counted(means.weight != 0.0)
        return means

    def part_loss_and_gradient(self, point: Weights, part: Part) -> LossAndGradient:
        """Loss and gradient over a few batches of this process alone."""
        return _means(*self._sums(point, part))

    def parts(self, size: int) -> Iterator[Part]:
        """The samples in order, `size` at a time, whatever the batch size of the loader.

        The last part may be smaller. Batches are joined up to what one backward may take.
        """
        part: Part = []
        missing = size
        for where, batch in self.surface.chunks(min(self.gradient_chunk, size)):
            start, length = 0, _batches.num_samples(batch)
            while start < length:
                piece = _batches.take(batch, slice(start, start + missing))
                self._append(part, dataclasses.replace(where, start=where.start + start), piece)
                taken = _batches.num_samples(piece)
                start, missing = start + taken, missing - taken
                if missing == 0:
                    yield part
                    part, missing = [], size
        if part:
            yield part

    def _append(self, part: Part, where: BatchLocation, piece: Any) -> None:
        if part:
            first, last = part[-1]
            if _batches.num_samples(last) + _batches.num_samples(piece) <= self.gradient_chunk:
                joined = _batches.join(last, piece)
                if joined is not None:
                    part[-1] = first, joined
                    return
        part.append((where, piece))

    def _sums(
        self, point: Weights, batches: Iterable[tuple[BatchLocation, Any]]
    ) -> tuple[Tensor, Weights]:
        """Σ loss and Σ weight as one tensor, and Σ gradient."""
        surface = self.surface
        at = self.weights | point
        total = torch.zeros(2, dtype=torch.float64, device=surface.device)
        sums = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in at.items()}
        with torch.enable_grad(), full_precision():
            for where, batch in batches:
                leaves = {name: value.detach().requires_grad_() for name, value in at.items()}
                with surface.substituting(leaves):
                    outputs, targets = surface.outputs(batch, where=where)
                    loss = surface.loss.values(outputs.double(), targets).sum()
                    gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
                surface.cost += Cost(backwards=_batches.num_samples(batch))
                for name, gradient in zip(leaves, gradients, strict=True):
                    if gradient is not None:
                        sums[name] += gradient
                weights = surface.loss.weights(outputs.detach(), targets).double()
                total += torch.stack([loss.detach(), weights.sum()])
        return total, sums

    def _loss_sums(self, outputs: Tensor, targets: Tensor) -> Tensor:
        values = self.surface.loss.values(outputs.double(), targets)
        return values.nan_to_num(nan=OVERFLOW, posinf=OVERFLOW).sum()

    def _error_sums(self, outputs: Tensor, targets: Tensor) -> Tensor:
        loss = cast(CrossEntropy, self.surface.loss)
        whole = outputs.isfinite().reshape(len(outputs), -1).all(dim=1)
        missed = loss.errors(outputs.nan_to_num(), targets)
        return missed.where(whole, loss.weights(outputs, targets)).double().sum()


def flatten_weights(parts: Weights) -> Tensor:
    """All parts as one flat vector in float64."""
    return torch.cat([part.flatten().double() for part in parts.values()])


def _means(total: Tensor, sums: Weights) -> LossAndGradient:
    loss, weight = total.tolist()
    by = weight or 1.0
    return LossAndGradient(
        loss / by, {name: value.div_(by) for name, value in sums.items()}, weight
    )


def normal_numbers(surface: Surface, seed: int, purpose: str, number: int) -> Weights:
    """Standard normal numbers for every measured parameter, in float64.

    Drawn on the CPU, so that they are the same on every device and in every precision.
    """
    key = hashlib.blake2b(f"{seed}/{purpose}/{number}".encode(), digest_size=4).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(key, "big"))
    return {
        name: torch.randn(p.shape, generator=generator, dtype=torch.float64).to(p.device)
        for name, p in surface.parameters.items()
    }


class NoiseVectors:
    """Noise vectors by their numbers, in float64."""

    def __init__(self, surface: Surface, *, seed: int, memory: int = CACHE_BYTES) -> None:
        """`memory` is the number of bytes that may be kept."""
        self.surface, self.seed, self.memory = surface, seed, min(memory, CACHE_BYTES)
        self._cache: dict[int, Tensor] = {}

    def __getitem__(self, number: int) -> Tensor:
        """The noise vector of this number, drawn on first use."""
        vector = self._cache.get(number)
        if vector is None:
            vector = flatten_weights(normal_numbers(self.surface, self.seed, "noise", number))
            size = vector.numel() * vector.element_size()
            if (len(self._cache) + 1) * size <= self.memory:
                self._cache[number] = vector
        return vector


class WeightNoise:
    """Noise N(0, σ²) on every weight θ, or N(0, σ²θ²) if relative."""

    def __init__(self, perturbed: PerturbedLoss, draws: NoiseVectors, *, relative: bool) -> None:
        self.perturbed, self.draws, self.relative = perturbed, draws, relative
        size = sum(p.numel() * p.element_size() for p in perturbed.weights.values())
        room = min(VECTOR_BYTES, draws.memory)
        self.together = max(1, room // (2 * size))  # draws per pass over the data

    def rises(self, sigma: float, draws: Sequence[int], target: Target = "loss") -> list[float]:
        """For each draw, the mean over its two points minus the unperturbed value."""
        perturbed = self.perturbed
        scores = perturbed.losses if target == "loss" else perturbed.errors
        here = perturbed.unperturbed_loss if target == "loss" else perturbed.unperturbed_error
        rises: list[float] = []
        for first in range(0, len(draws), self.together):
            pairs = [self._pair(sigma, draw) for draw in draws[first : first + self.together]]
            values = scores([point for pair in pairs for point in pair])
            both = zip(values[::2], values[1::2], strict=True)
            rises += [((a - here) + (b - here)) / 2 for a, b in both]
        return rises

    def _pair(self, sigma: float, draw: int) -> tuple[Weights, Weights]:
        step = sigma * self.draws[draw]
        if self.relative:
            step *= self.perturbed.flat_weights.abs()
        return self.perturbed.displaced(step), self.perturbed.displaced(-step)
