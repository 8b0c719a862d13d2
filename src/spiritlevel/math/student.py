"""Quantiles of Student's t distribution, for intervals from few repetitions."""

from __future__ import annotations

import functools
import math
import statistics

_POINTS = 200  # of Simpson's rule: accurate to seven digits or more
_LARGE = 1000  # degrees of freedom from which a corrected normal quantile is accurate enough


@functools.cache  # the same few arguments recur
def t_quantile(probability: float, dof: float) -> float:
    """The x with P(T ≤ x) = probability, for any number of degrees of freedom ≥ 1.

    >>> round(t_quantile(0.975, 1), 3), round(t_quantile(0.975, 10), 3)
    (12.706, 2.228)
    >>> round(t_quantile(0.975, math.inf), 4)
    1.96
    """
    if probability < 0.5:
        return -t_quantile(1.0 - probability, dof)
    if dof > _LARGE:
        return _near_normal(probability, dof)
    low, high = 0.0, math.pi / 2
    angle = math.atan(_near_normal(probability, dof) / math.sqrt(dof))
    for _ in range(60):  # Newton's steps, or halving where they leave the bracket
        gap = _probability_up_to(angle, dof) - probability
        low, high = (angle, high) if gap < 0 else (low, angle)
        density = math.exp(_log_factor(dof)) * math.cos(angle) ** (dof - 1)
        following = angle - gap / density if density else low
        if not low < following < high:
            following = (low + high) / 2
        if abs(following - angle) <= 1e-15 * angle:
            break
        angle = following
    return math.sqrt(dof) * math.tan(angle)


def _probability_up_to(angle: float, dof: float) -> float:
    """P(T ≤ √dof·tan(angle)): with t = √dof·tan u the density is cos(u)^(dof−1), up to a factor."""
    step = angle / _POINTS
    total = 0.0
    for i in range(_POINTS + 1):
        weight = 1 if i in (0, _POINTS) else 4 if i % 2 else 2
        total += weight * math.cos(i * step) ** (dof - 1)
    return 0.5 + math.exp(_log_factor(dof)) * total * step / 3


def _log_factor(dof: float) -> float:
    return math.lgamma((dof + 1) / 2) - math.lgamma(dof / 2) - 0.5 * math.log(math.pi)


def _near_normal(probability: float, dof: float) -> float:
    """The normal quantile with the first two terms of its expansion in 1/dof."""
    z = statistics.NormalDist().inv_cdf(probability)
    first = (z**3 + z) / (4 * dof)
    return z + first + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * dof**2)
