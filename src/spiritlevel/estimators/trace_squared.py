"""Tr(H²) = E‖Hz‖² for random signs z, to the precision that was asked for."""

from __future__ import annotations

import math

import torch

from ..math.signs import random_signs
from .estimate import Estimate, of_repetitions
from .products import Request, Space
from .weight_probes import GROWTH, PILOT, VECTOR_BYTES, next_count
from .work import Work

_STREAM = 1003  # of random signs: next to those of the other weight probes


def trace_squared(work: Work) -> tuple[Estimate, int]:
    """Over all measured parameters, and how many probes it took."""
    space, asked = Space(work.surface), work.precision
    held = max(1, VECTOR_BYTES // (16 * space.size))
    values: list[float] = []

    def draw(count: int) -> None:
        while count > 0:
            part = min(count, held)
            numbers = torch.arange(len(values), len(values) + part, device=space.device)
            signs = random_signs(work.seed, _STREAM, numbers, space.size, space.dtype)
            (images,) = work.products.multiply([Request("hessian", space, signs)])
            values.extend(images.double().square().sum(dim=1).tolist())
            count -= part

    draw(max(2, min(PILOT, asked.max_passes)))
    while True:
        found = of_repetitions(values)
        count = len(values)
        if not found.variance or found.within(asked.rtol, asked.confidence):
            return found, count
        enough = next_count(found, found, count, rtol=asked.rtol, confidence=asked.confidence)
        more = math.ceil(1.05 * min(enough, GROWTH * count)) - count
        more = min(max(more, 1), asked.max_passes - count)
        if more <= 0:
            return found, count
        draw(more)
