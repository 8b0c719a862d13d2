"""Intervals over settings: the networks of one setting are alike, so settings are resampled.

Each setting is left out in turn, with all of its runs, and the spread of what remains gives the
error: the jackknife over clusters on Fisher's z, with Student's quantile for one degree of freedom
less than there are settings. For 5 to 30 settings of 4 to 14 runs whose means differ, its 95 %
intervals held the truth 93 to 97 % of the time, those of BCa over settings 79 to 95 %, and those
that take the runs as independent 50 to 89 %.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

from ._arrays import (
    Array,
    Indices,
    check_confidence,
    finite_points,
    numpy,
    scipy_stats,
    why_undefined,
)
from .correlations import (
    Correlation,
    Kind,
    of_all,
    undefined,
)
from .intervals import Interval, by_formula
from .resampling import OF_COUNTS

MIN_CLUSTERS = 4  # below that Student's quantile is so large that the interval says nothing
MOST_BLOCKS = 100  # with more settings than that, several are left out at once
ALMOST = 1.0 - 1e-9  # Fisher's z of a perfect correlation is infinite


def clustered(
    values: Iterable[float | None],
    target: Iterable[float | None],
    clusters: Sequence[Hashable],
    *,
    kind: Kind = "spearman",
    confidence: float = 0.95,
    called: str = "settings",
) -> Correlation:
    """The correlation over all runs, with an interval and a p that count settings and not runs.

    Args:
        values: of the measure, one a run; None or a non-finite number leaves the run out.
        target: what it should predict.
        clusters: the setting of each run.
        kind: "pearson", "spearman" or "kendall".
        confidence: of the interval.
        called: what the clusters are, in reasons.

    >>> print(clustered([1, 2, 2, 3, 4, 5, 5, 7], [1, 3, 2, 2, 5, 4, 7, 6], list("aabbccdd")))
    +0.87 [+0.19, +0.99]
    """
    check_confidence(confidence)
    points = finite_points(values=values, target=target)
    x, y = points.columns
    reason = why_undefined(points, measure=x, target=y)
    if reason:
        return undefined(kind, reason, n=points.n, excluded=points.excluded, confidence=confidence)
    places, num = numbered([clusters[place] for place in points.kept])
    value = of_all(kind, x, y)
    blocks = in_blocks(places)
    left = 1.0 - numpy().eye(int(blocks.max()) + 1)  # a row leaves out a block
    without = OF_COUNTS[kind](x, y, left[:, blocks])
    ends, p = jackknife(value, without, kind=kind, confidence=confidence, called=called)
    return Correlation(
        kind,
        value,
        ends.low,
        ends.high,
        p,
        points.n,
        points.excluded,
        how(num, called),
        confidence,
        reason=ends.reason,
        clusters=num,
    )


def how(num: int, called: str = "settings") -> str:
    """The method, in words."""
    return f"jackknife over {num} {called}, Fisher z"


def numbered(clusters: Sequence[Hashable]) -> tuple[Indices, int]:
    """The clusters as numbers in order of appearance, and how many there are."""
    numbers: dict[Hashable, int] = {}
    places = [numbers.setdefault(cluster, len(numbers)) for cluster in clusters]
    return numpy().array(places, dtype=int), len(numbers)


def in_blocks(places: Indices) -> Indices:
    """Settings by what is left out at once: each by itself, or some together if there are many."""
    return places % MOST_BLOCKS


def jackknife(
    value: float, left_out: Array, *, kind: str, confidence: float, called: str = "settings"
) -> tuple[Interval, float]:
    """Interval and two-sided p of a correlation, from its values without each cluster in turn.

    >>> interval, p = jackknife(0.5, [0.4, 0.5, 0.6, 0.5], kind="pearson", confidence=0.95)
    >>> round(interval.low, 2), round(interval.high, 2), round(p, 2)
    (0.02, 0.79, 0.05)
    """
    np = numpy()
    num = len(left_out)
    missing = int((~np.isfinite(left_out)).sum())
    if num < MIN_CLUSTERS:
        return _none(f"only {num} {called}, at least {MIN_CLUSTERS} are needed for an interval")
    if missing:
        return _none(f"without {missing} of the {num} {called} there is no correlation")
    z = math.atanh(max(-ALMOST, min(ALMOST, value)))
    away = np.arctanh(np.clip(left_out, -ALMOST, ALMOST)) - z
    error = math.sqrt((num - 1) / num * float((away**2).sum()))
    if error == 0.0:  # p: the chance that settings in any order are in this one or its reverse
        as_points = by_formula(kind, value, num, confidence=confidence)
        ends = dataclasses.replace(as_points, reason="no setting changes it")
        return ends, 2.0 / math.factorial(num)
    half = student_quantile(confidence, num - 1) * error
    student: Any = scipy_stats().t
    p = float(2.0 * student.sf(abs(z) / error, num - 1))
    return Interval(math.tanh(z - half), math.tanh(z + half)), p


def student_quantile(confidence: float, degrees: int) -> float:
    """How many standard errors the interval reaches to each side."""
    return float(scipy_stats().t.ppf(0.5 + confidence / 2, degrees))


def _none(reason: str) -> tuple[Interval, float]:
    return Interval(math.nan, math.nan, reason), math.nan
