"""Gaussian noise on the weights, reproducible by number.

A draw is a noise vector together with its negative: the mean of the two has no term linear in the
noise, which would otherwise be the largest part of the error. A vector depends only on the seed and
its number, so it is the same at every scale, for any batches and for every measure. As many as fit
are kept in memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from ...model.surface import Surface
from .perturbed import PerturbedLoss, Weights, flatten_weights
from .probes import VECTOR_BYTES

Target = Literal["loss", "error"]
CACHE_BYTES = 1 << 28  # of noise: drawing it again takes as long as a pass


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


class Draws:
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


class Noise:
    """Noise N(0, σ²) on every weight θ, or N(0, σ²θ²) if relative."""

    def __init__(self, perturbed: PerturbedLoss, draws: Draws, *, relative: bool) -> None:
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
