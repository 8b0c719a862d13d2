"""The largest noise under which error or loss rise by no more than a given amount on average.

All noise levels use the same noise vectors, scaled. So the mean rise is a curve in σ that chance
shifts as a whole, and its crossing with the allowed rise can be found to a small part of the error
that the finite number of draws leaves. A few of the draws find the neighbourhood, where a pass
over the data says little and costs as much as elsewhere; all of them are spent around the crossing.
"""

from __future__ import annotations

import dataclasses
import math

from ...engine.estimate import Estimate, estimate_from_repetitions
from ...engine.weight_space.perturbed import Target, WeightNoise
from ...engine.workspace import Workspace
from ...model.losses import CrossEntropy

START = 0.1  # first noise tried, in units of the weights' size
FACTOR = 4.0  # at most, between noises that are tried until the crossing lies between two
LARGEST = 100.0  # in units of the weights' size: nothing of the network is left
SMALLEST = 1e-12
CLOSE = 0.05  # of the error bar: what is left adds an eighth of a percent to it
FEW, FEW_CLOSE = 4, 1.0  # draws that find the neighbourhood, and how close they come to it
ASIDE, FAR = 0.25, 1.0  # in log σ: how far apart the levels are that the steepness is read off from
MOST_TRIES = 40  # of narrowing down; a step function ends before, by the width of the bracket
INSET = 0.02  # of a bracket's width, that it shrinks by at least
HALVED = 3  # every third time, for curves that guesses do not fit
NARROW = 1e-3  # in log σ


@dataclasses.dataclass(frozen=True)
class NoiseLimit:
    """1/σ² at the crossing. Where there is none, the value at the largest σ tried bounds it."""

    flatness: Estimate
    sigma: float
    reached: bool
    rise: float  # at σ
    levels: int  # noise levels tried
    target: Target


@dataclasses.dataclass(frozen=True)
class _Level:
    log_sigma: float
    rise: Estimate

    def above(self, deviation: float) -> bool:
        return self.rise.value > deviation


class SigmaSearch:
    """The rise as a function of σ, and where it crosses the allowed one."""

    def __init__(self, workspace: Workspace, *, relative: bool) -> None:
        self.noise = WeightNoise(workspace.perturbed, workspace.draws, relative=relative)
        self.draws, self.deviation = range(workspace.options.draws), workspace.options.deviation
        asked = workspace.options.target
        if asked == "auto":
            asked = "error" if isinstance(workspace.surface.loss, CrossEntropy) else "loss"
        self.target: Target = asked
        self.unit = 1.0 if relative else _size(workspace)
        self.levels = 0
        self._with_all: list[_Level] = []  # that had all draws

    def find(self) -> NoiseLimit:
        """Find the neighbourhood with a few draws, the crossing with all, and how sure it is."""
        start, step = math.log(START * self.unit), math.log(FACTOR)
        if len(self.draws) > FEW:
            start = self._neighbourhood(start, step)
            step = ASIDE
        low, high = self._bracket(start, step, self.draws)
        if high is None or low is None:
            end = low or high
            assert end is not None
            sigma = math.exp(end.log_sigma)
            bound = Estimate(sigma**-2)
            return NoiseLimit(bound, sigma, False, end.rise.value, self.levels, self.target)
        low, high = self._narrowed(low, high, self.draws, CLOSE)
        middle = self._between(low, high)
        steepness = self._steepness(middle)
        nearest = min((low, high), key=lambda level: abs(level.rise.value - self.deviation))
        value = math.exp(-2 * middle)
        relative = 4 * nearest.rise.variance / steepness**2 if steepness > 0 else math.inf
        flatness = Estimate(value, value**2 * relative, nearest.rise.dof)
        return NoiseLimit(
            flatness, math.exp(middle), True, self.deviation, self.levels, self.target
        )

    def _neighbourhood(self, start: float, step: float) -> float:
        """Where the rise over a few draws crosses, or the end where it does not."""
        few = self.draws[:FEW]
        low, high = self._bracket(start, step, few)
        if low is None or high is None:
            end = low or high
            assert end is not None
            return end.log_sigma
        return self._between(*self._narrowed(low, high, few, FEW_CLOSE))

    def _level(self, log_sigma: float, draws: range) -> _Level:
        self.levels += 1
        rises = self.noise.rises(math.exp(log_sigma), draws, self.target)
        level = _Level(log_sigma, estimate_from_repetitions(rises))
        if len(draws) == len(self.draws):
            self._with_all.append(level)
        return level

    def _bracket(
        self, start: float, step: float, draws: range
    ) -> tuple[_Level | None, _Level | None]:
        """The last level below and the first above, going up or down from the start.

        Steps double: one that starts close by ends soon, and one that does not still gets far.
        """
        level = self._level(start, draws)
        rising = level.above(self.deviation)
        last = math.log((SMALLEST if rising else LARGEST) * self.unit)
        step = -step if rising else step
        while (last - level.log_sigma) * step > 1e-9:
            ahead = level.log_sigma + step
            beyond = (last - ahead) * step < 0
            following = self._level(last if beyond else ahead, draws)
            if following.above(self.deviation) != rising:
                return (following, level) if rising else (level, following)
            level = following
            step = math.copysign(min(2 * abs(step), math.log(FACTOR)), step)
        return (None, level) if rising else (level, None)

    def _narrowed(
        self, low: _Level, high: _Level, draws: range, close: float
    ) -> tuple[_Level, _Level]:
        """Until what is left of the bracket is small against the error bar."""
        for tried in range(1, MOST_TRIES + 1):
            nearest = min(abs(level.rise.value - self.deviation) for level in (low, high))
            if nearest <= close * min(low.rise.stderr, high.rise.stderr):
                break
            width = high.log_sigma - low.log_sigma
            if width <= NARROW:
                break
            guess, inset = self._between(low, high), INSET * width
            inside = min(max(guess, low.log_sigma + inset), high.log_sigma - inset)
            if tried % HALVED == 0:
                inside = (low.log_sigma + high.log_sigma) / 2
            level = self._level(inside, draws)
            low, high = (low, level) if level.above(self.deviation) else (level, high)
        return low, high

    def _between(self, low: _Level, high: _Level) -> float:
        """Where a power of σ through both crosses the allowed rise, or a line if one is ≤ 0."""
        bottom, top, aim = low.rise.value, high.rise.value, self.deviation
        if bottom > 0.0:
            bottom, top, aim = math.log(bottom), math.log(top), math.log(aim)
        share = (aim - bottom) / (top - bottom)
        return low.log_sigma + share * (high.log_sigma - low.log_sigma)

    def _steepness(self, log_sigma: float) -> float:
        """Derivative of the rise in log σ; exact where the rise is a power of σ."""
        below, above = self._around(log_sigma)
        width = above.log_sigma - below.log_sigma
        low, high = below.rise.value, above.rise.value
        if not math.isfinite(high):
            return 0.0  # not known: a loss that overflows would pass for infinitely steep
        if low > 0.0:
            return self.deviation * math.log(high / low) / width if high > 0.0 else 0.0
        return (high - low) / width

    def _around(self, log_sigma: float) -> tuple[_Level, _Level]:
        """One on each side, neither too close together nor too far apart: known ones, or new."""
        pairs = [
            (below, above)
            for below in self._with_all
            for above in self._with_all
            if below.log_sigma <= log_sigma <= above.log_sigma
            and ASIDE <= round(above.log_sigma - below.log_sigma, 9) <= FAR
        ]
        if pairs:
            return min(pairs, key=lambda pair: pair[1].log_sigma - pair[0].log_sigma)
        below = self._level(log_sigma - ASIDE, self.draws)
        return below, self._level(log_sigma + ASIDE, self.draws)


def _size(workspace: Workspace) -> float:
    """Root mean square of the weights; 1 where all are zero."""
    weights = [p.detach().double() for p in workspace.surface.parameters.values()]
    square = sum(float(w.square().sum()) for w in weights) / sum(w.numel() for w in weights)
    return math.sqrt(square) or 1.0
