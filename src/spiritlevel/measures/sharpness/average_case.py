"""The mean rise of the loss under Gaussian noise, to the precision that was asked for."""

from __future__ import annotations

import math

from ...engine.estimate import Estimate, cautious_count, estimate_of_draws
from ...engine.precision import Precision
from ...engine.weight_space.noise import Noise
from ...engine.weight_space.probes import GROWTH, PILOT, next_count
from ...engine.workspace import Workspace

PASSES_A_DRAW = 2  # the noise and its mirror image


def average_rise(workspace: Workspace, *, sigma: float, relative: bool) -> tuple[Estimate, int]:
    """The estimate, and how many draws it took."""
    noise = Noise(workspace.perturbed, workspace.draws, relative=relative)
    asked = workspace.precision
    allowed = max(2, asked.max_passes // PASSES_A_DRAW)
    values: list[float] = []

    def draw(count: int) -> None:
        values.extend(noise.rises(sigma, range(len(values), len(values) + count)))

    draw(max(2, min(PILOT, allowed)))
    while True:
        estimate, count = estimate_of_draws(values), len(values)
        if not estimate.variance or estimate.within(asked.rtol, asked.confidence):
            return estimate, count
        wanted = math.ceil(1.05 * min(_sufficient(estimate, count, asked), GROWTH * count))
        more = min(max(wanted - count, 1), allowed - count)
        if more <= 0:
            return estimate, count
        draw(more)


def passes_that_suffice(estimate: Estimate, count: int, asked: Precision) -> int:
    """A `max_passes` that would bring the estimate within what was asked for."""
    return PASSES_A_DRAW * cautious_count(_sufficient(estimate, count, asked), estimate.dof)


def _sufficient(estimate: Estimate, count: int, asked: Precision) -> float:
    return next_count(estimate, estimate, count, rtol=asked.rtol, confidence=asked.confidence)
