"""Rank agreement of two orders, with how often chance does as well."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Agreement:
    """Kendall's τ of n pairs, and the share of random orders with |τ| at least as large."""

    tau: float
    chance: float
    n: int

    def __str__(self) -> str:
        return f"{self.tau:+.2f} (n = {self.n})".replace("-", "−")


def agreement(a: Sequence[float], b: Sequence[float]) -> Agreement:
    """Kendall's τ: agreeing minus disagreeing pairs, over all pairs.

    >>> found = agreement([1, 2, 3], [10, 30, 20])
    >>> print(found, found.chance)                # every order of three agrees in one pair or more
    +0.33 (n = 3) 1.0
    """
    pairs = list(itertools.combinations(zip(a, b, strict=True), 2))
    score = sum(_sign(p[0] - q[0]) * _sign(p[1] - q[1]) for p, q in pairs)
    counts = _orders_by_inversions(len(a))
    as_strong = sum(
        count for i, count in enumerate(counts) if abs(len(pairs) - 2 * i) >= abs(score)
    )
    return Agreement(score / len(pairs), as_strong / math.factorial(len(a)), len(a))


def _sign(x: float) -> int:
    return (x > 0) - (x < 0)


def _orders_by_inversions(n: int) -> list[int]:
    """How many orders of n items have 0, 1, 2, … pairs the wrong way round."""
    counts = [1]
    for size in range(2, n + 1):
        longer = [0] * (len(counts) + size - 1)
        for i, count in enumerate(counts):
            for shift in range(size):
                longer[i + shift] += count
        counts = longer
    return counts
