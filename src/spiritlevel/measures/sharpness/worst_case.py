"""The largest rise of the loss within a ball around the weights: of all data, or of groups of it.

Climbs run in coordinates u with ε = s∘u, ‖u‖ ≤ ρ. For plain sharpness s = 1. For adaptive sharpness
s = |θ|: rescaling a network's weights changes s but not u, so the climb stays the same.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import torch
from torch import Tensor

from ...engine.weight_space.perturbed import (
    LossAndGradient,
    Weights,
    flatten_weights,
    normal_numbers,
)
from ...engine.weight_space.probes import VECTOR_BYTES
from ...engine.workspace import Workspace
from ...ground.errors import NotFinite
from .ascent import Peak, Point, ascend

LEAST_MEMORY = (
    2  # points of a climb: with two, on a quadratic, it is as good as conjugate gradients
)
MOST_MEMORY = 32  # beyond this their inner products take longer than they save


@dataclasses.dataclass(frozen=True)
class Worst:
    """The highest peak, and how far apart those of the other starts lie."""

    rise: float
    residual: float  # what may be missing as far as the climbs tell
    unfinished: float  # rise that was still going on when the steps were spent
    climbs: int
    steps: int
    apart: float  # between the highest peak and the lowest


class Ball:
    """‖ε‖ ≤ ρ, or ‖ε/|θ|‖ ≤ ρ, around the weights of a network."""

    def __init__(self, workspace: Workspace, *, radius: float, relative: bool) -> None:
        self.workspace, self.perturbed = workspace, workspace.perturbed
        self.radius, self.relative = radius, relative
        num_bytes = 16 * workspace.perturbed.space.size
        self.memory = min(max(LEAST_MEMORY, VECTOR_BYTES // num_bytes), MOST_MEMORY)

    # -- the coordinates ---------------------------------------------------------------------

    @functools.cached_property
    def scale(self) -> Tensor | None:
        """The scale s of the coordinates; None for plain sharpness, where it is 1."""
        return self.perturbed.flat_weights.abs() if self.relative else None

    def _point(self, place: Tensor, slope: LossAndGradient) -> Point:
        gradient = flatten_weights(slope.gradient)
        return Point(place, slope.loss, gradient if self.scale is None else self.scale * gradient)

    def _random(self, number: int) -> Tensor:
        """A direction of length ρ, drawn in these coordinates; none where a weight is zero."""
        drawn = flatten_weights(
            normal_numbers(self.workspace.surface, self.workspace.seed, "start", number)
        )
        if self.scale is not None:
            drawn = drawn * (self.scale > 0)
        return drawn * (self.radius / drawn.norm().clamp(min=1e-300))

    # -- the climbs --------------------------------------------------------------------------

    def over_all_data(self) -> Worst:
        """The worst point found from a start along the gradient and from random ones."""
        restarts = self.workspace.options.restarts
        return self._worst(self.perturbed.loss_and_gradient, self.perturbed.unperturbed, restarts)

    def over_groups(self, size: int) -> tuple[Worst, int]:
        """The mean over groups of `size` samples of the worst case of each, and how many there are.

        One climb a group. Loss and gradient at the weights are those of the group, so they are not
        shared with other measures: keeping one gradient a group could take any amount of memory.
        """
        surface = self.workspace.surface
        totals = torch.zeros(7, dtype=torch.float64, device=surface.device)
        with surface.processes.together():  # groups are of one process: nobody waits in between
            for part in self.perturbed.parts(size):
                here = self.perturbed.part_loss_and_gradient({}, part)
                if here.weight == 0.0:  # nothing in it counts
                    continue
                slope = functools.partial(self.perturbed.part_loss_and_gradient, part=part)
                worst = self._worst(slope, here, 0)
                weighed = [worst.rise, worst.residual, worst.unfinished, 1.0]
                counts = [1.0, worst.climbs, worst.steps]
                totals += totals.new_tensor([here.weight * number for number in weighed] + counts)
        surface.processes.sum_(totals)
        rise, residual, unfinished = (totals[:3] / totals[3]).tolist()
        groups, climbs, steps = (int(count) for count in totals[4:].tolist())
        worst = Worst(rise, residual, unfinished, climbs=climbs, steps=steps, apart=0.0)
        return worst, groups

    def _worst(
        self, slope: Callable[[Weights], LossAndGradient], here: LossAndGradient, restarts: int
    ) -> Worst:
        """Along the gradient and from `restarts` random starts; from one at least without it."""
        centre = self._point(torch.zeros_like(self.perturbed.flat_weights), here)
        if self.scale is not None and not bool(self.scale.any()):
            return Worst(0.0, 0.0, 0.0, 0, 0, 0.0)  # weights of size zero leave no ball

        def at(place: Tensor) -> tuple[float, Tensor]:
            try:
                step = place if self.scale is None else self.scale * place
                point = self._point(place, slope(self.perturbed.displaced(step)))
            except NotFinite as error:
                option = "adaptive_rho" if self.relative else "rho"
                raise NotFinite(
                    f"The model's outputs must be finite at weights displaced by a radius of "
                    f"{self.radius:g}. They are NaN or infinite there, and finite at its own "
                    f"weights. Choose a smaller '{option}' in the options."
                ) from error
            return point.loss, point.gradient

        peaks = []
        length = float(centre.gradient.norm())
        visible = length * self.radius > self.perturbed.round_off(centre.loss)
        if visible:  # else the gradient is zero, or noise
            start = centre.gradient * (self.radius / length)
            peaks.append(self._climb(at, centre, start, inside=True))
        for number in range(restarts if peaks else max(restarts, 1)):
            peaks.append(self._climb(at, centre, self._random(number), inside=False))
        top = max(peaks, key=lambda peak: peak.rise)
        apart = top.rise - min(peak.rise for peak in peaks)
        steps = sum(peak.steps for peak in peaks)
        residual = max(top.residual, apart)
        return Worst(
            top.rise, residual, top.unfinished, climbs=len(peaks), steps=steps, apart=apart
        )

    def _climb(
        self,
        at: Callable[[Tensor], tuple[float, Tensor]],
        centre: Point,
        start: Tensor,
        *,
        inside: bool,
    ) -> Peak:
        return ascend(
            at,
            centre,
            start,
            radius=self.radius,
            steps=self.workspace.options.ascent_steps,
            memory=self.memory,
            round_off=self.perturbed.round_off(centre.loss),
            inside=inside,
        )
