"""Gaussian noise on the weights, made from its number.

A draw is a noise vector together with its mirror image: the mean of the two has no term linear in
the noise, which would otherwise be the largest part of the error. A vector follows from the seed
and its number alone, so it is the same at every scale, on any batches and for every measure. As
many as fit are kept.
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
KEPT_BYTES = 1 << 28  # of noise: drawing it anew takes as long as a pass


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

    def __init__(self, surface: Surface, *, seed: int, memory: int = KEPT_BYTES) -> None:
        """`memory` bounds the bytes that are kept."""
        self.surface, self.seed, self.memory = surface, seed, min(memory, KEPT_BYTES)
        self._kept: dict[int, Tensor] = {}

    def __getitem__(self, number: int) -> Tensor:
        """Drawn, or kept from when it was drawn for another level or measure."""
        found = self._kept.get(number)
        if found is None:
            found = flatten_weights(normal_numbers(self.surface, self.seed, "noise", number))
            size = found.numel() * found.element_size()
            if (len(self._kept) + 1) * size <= self.memory:
                self._kept[number] = found
        return found


class Noise:
    """N(0, σ²), or N(0, σ²θ²) for every weight."""

    def __init__(self, perturbed: PerturbedLoss, draws: Draws, *, relative: bool) -> None:
        self.perturbed, self.draws, self.relative = perturbed, draws, relative
        held = sum(p.numel() * p.element_size() for p in perturbed.weights.values())
        self.together = max(1, VECTOR_BYTES // (2 * held))  # draws that a pass over the data takes

    def rises(self, sigma: float, draws: Sequence[int], target: Target = "loss") -> list[float]:
        """Of each draw, the mean over its two points less the value at the weights themselves."""
        perturbed = self.perturbed
        scores = perturbed.losses if target == "loss" else perturbed.errors
        here = perturbed.unperturbed_loss if target == "loss" else perturbed.unperturbed_error
        found: list[float] = []
        for first in range(0, len(draws), self.together):
            pairs = [self._pair(sigma, draw) for draw in draws[first : first + self.together]]
            values = scores([point for pair in pairs for point in pair])
            both = zip(values[::2], values[1::2], strict=True)
            found += [((a - here) + (b - here)) / 2 for a, b in both]
        return found

    def _pair(self, sigma: float, draw: int) -> tuple[Weights, Weights]:
        step = sigma * self.draws[draw]
        if self.relative:
            step *= self.perturbed.flat_weights.abs()
        return self.perturbed.displaced(step), self.perturbed.displaced(-step)
