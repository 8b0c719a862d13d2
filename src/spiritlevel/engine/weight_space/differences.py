"""Derivatives along a direction by central differences, each with the error it may have.

(f(θ + sv) − f(θ − sv)) / 2s needs nothing but values of f, here a gradient: any attention kernel,
compiled, checkpointed or sharded models. Its error is that of the third derivative, of kinks within
the step, and of rounding. No step is right for all directions: along an eigenvector the third
derivative shows at a hundredth of the step that does for a random one. So every direction has its
own. A step and twice that step must agree, or it is halved, or doubled where rounding is in the
way. Their gap is stated, together with what rounding may do: that is measured, by values of f at
weights that differ in their last digits.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from .long_rows import over_all_columns

Parts = dict[str, Tensor]  # by parameter
Function = Callable[[Parts], Parts]

# Relative to the weights, in square roots of the precision: the first step is the shortest that
# rounding leaves half of the digits. A shorter one has less of third derivatives and of kinks.
FIRST_STEP = 2.0
# Gap and rounding that are small enough, relative to the derivative, in the same unit.
ENOUGH = 4.0


class Difference(NamedTuple):
    """A derivative along a direction, and what it may be off."""

    value: Parts
    gap: Parts | None = None  # the value minus what twice the step gives
    rounding: float = 0.0  # how long the part of the value is that may be rounding


@dataclasses.dataclass(frozen=True)
class _Pair:
    """Quotients over a step and over twice that step."""

    step: float
    short: Parts
    long: Parts
    apart: float  # the length of their difference
    rounding: float

    @property
    def error(self) -> float:
        return self.apart + self.rounding


class Differences:
    """Derivatives of one function along several directions.

    It remembers how the function is rounded, and the step that served the direction before.
    """

    def __init__(self) -> None:
        self._rounding: float | None = None
        self._step: float | None = None  # relative to the weights

    def along(self, function: Function, start: Parts, direction: Parts) -> Difference:
        """The derivative at `start`; `function` must return new tensors."""
        length, unit = length_of(direction), math.sqrt(precision_of(start))
        if length == 0.0:
            zeros = {name: torch.zeros_like(value) for name, value in function(start).items()}
            return Difference(zeros, dict(zeros), 0.0)
        if self._rounding is None:
            self._rounding = rounding_of(function, start)
        size = max(length_of(start), 1.0) / length
        quotient = _quotients(function, start, direction)
        step, enough = (self._step or FIRST_STEP * unit) * size, ENOUGH * unit
        # a step beyond the root of this unit, relative to the weights, says nothing local
        longest = math.sqrt(unit) * size
        pair = _settled(quotient, step, longest, rounding=self._rounding, enough=enough)
        settled = pair.error <= enough * length_of(pair.short)
        if settled:
            self._step = pair.step / size
        # a kink within both steps is off by twice the gap
        factor = 1.0 if settled else 2.0
        gap = {name: (part - pair.long[name]).mul_(factor) for name, part in pair.short.items()}
        return Difference(pair.short, gap, pair.rounding)


def rounding_of(function: Function, start: Parts) -> float:
    """How far the function's values move with the last digits of the weights.

    At a point ahead and one behind weights are rounded in just that way, and so are the numbers
    that the function computes of them. The length of a vector.
    """
    here = function(start)
    first = next(iter(start.values()))
    generator = torch.Generator(first.device).manual_seed(0)
    eps = precision_of(start)

    def jittered(p: Tensor) -> Tensor:
        noise = torch.rand(p.shape, generator=generator, dtype=p.dtype, device=p.device)
        return p * (1.0 + eps * torch.where(noise < 0.5, -1.0, 1.0).to(p.dtype))

    moved = function({name: jittered(p) for name, p in start.items()})
    return max(
        _distance(moved, here),
        eps * length_of(here),
        torch.finfo(torch.float64).tiny,
    )


def _quotients(function: Function, start: Parts, direction: Parts) -> Callable[[float], Parts]:
    def at(step: float) -> Parts:
        return function({n: p.add(direction[n], alpha=step) for n, p in start.items()})

    def quotient(step: float) -> Parts:
        ahead, behind = at(step), at(-step)
        for name in list(behind):
            part = behind.pop(name)
            # not in place: parameters may share one gradient
            ahead[name] = ahead[name].sub(part).div_(2 * step)
            del part
        return ahead

    return quotient


def _settled(
    quotient: Callable[[float], Parts],
    step: float,
    longest: float,
    *,
    rounding: float,
    enough: float,
) -> _Pair:
    """Quotients over two steps that agree, or those with the least error of all that were tried."""

    def pair(step: float, short: Parts, long: Parts) -> _Pair:
        apart = _distance(short, long)
        # of the one over the shorter step, from four roundings of this size
        return _Pair(step, short, long, apart, rounding / step)

    best = now = pair(step, quotient(step), quotient(2 * step))
    shorter = not best.apart <= best.rounding  # NaN too: beyond the step the function overflows
    while best.error > enough * length_of(best.short):
        if shorter:
            if 2 * now.rounding >= best.error:  # half the step would leave as much to rounding
                break
            now = pair(now.step / 2, quotient(now.step / 2), now.short)
        else:
            if now.error > best.error or 4 * now.step > longest:
                break
            now = pair(2 * now.step, now.long, quotient(4 * now.step))
        best = min(best, now, key=lambda each: each.error)
    return best


def enough_in(dtype: torch.dtype) -> float:
    """The error, relative to a derivative in this type, at which no other step is tried."""
    return ENOUGH * math.sqrt(torch.finfo(dtype).eps)


def length_of(parts: Parts) -> float:
    """The length of all parts as one vector, with other processes' parts; infinite if NaN."""
    return _length(parts.values())


def _distance(some: Parts, others: Parts) -> float:
    return _length(part - others[name] for name, part in some.items())


def _length(parts: Iterable[Tensor]) -> float:
    squares = [part.double().square().sum() for part in parts]  # one copy at a time
    length = math.sqrt(float(over_all_columns(torch.stack(squares).sum())))
    return length if math.isfinite(length) else math.inf


def precision_of(parts: Parts) -> float:
    """The coarsest of the parts' precisions."""
    return max(torch.finfo(part.dtype).eps for part in parts.values())
