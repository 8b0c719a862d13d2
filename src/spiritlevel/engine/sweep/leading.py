"""Columns of the most likely classes taken exactly, and output probes of what they leave.

In a confident network few classes have nearly all the curvature of a sample, so that a few columns
leave next to nothing to chance. How much they leave of the curvature of the outputs is known from
the probabilities; the first probes show how much it varies.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

from ..estimate import Estimate
from ..refine import Outlook
from .sums import RANKS, SweepSums

MIN_SPREADS = 32  # least samples × (probes − 1) to estimate the error of output probes from
MOST_FEW = 1 + MIN_SPREADS  # so many show it in any case
PAYS = 1.2  # columns are taken where the other ways cost this many times as much: both are known
# only roughly, and a pass with columns takes the place of all before it
GAIN = 4  # and, where no way suffices, if they make the variance smaller by this factor


def least_probes(num_samples: float) -> int:
    """Probes from which on so many samples show how far they spread: at least two."""
    return 1 + max(1, math.ceil(MIN_SPREADS / max(num_samples, 1.0)))


def largest_excess(num_probes: int) -> float:
    """How much larger a value may be than the mean of a few probes of it, relative to that mean.

    In 39 cases of 40, if a single direction of a single sample has all of it, which is the worst
    case: the mean is that of squares of normal numbers, and Wilson and Hilferty (1931) have its
    quantiles. From two probes theirs are too low, which errs on the safe side.

    >>> [round(largest_excess(count), 1) for count in (2, 3, 4, 8)]
    [75.5, 15.5, 7.9, 2.7]
    """
    variance = 2 / (9 * num_probes)
    return float((1 - variance - 1.96 * math.sqrt(variance)) ** -3 - 1)


def few_probes(value: float, stderr: float) -> int:
    """How few probes do for something so small that even the worst case does not matter."""
    few = range(2, MOST_FEW)
    return next((n for n in few if value * largest_excess(n) <= stderr), MOST_FEW)


@dataclasses.dataclass(frozen=True)
class Split:
    """How many columns to take exactly, and how many probes of what they leave."""

    leading: int
    probes: int

    @property
    def cost(self) -> int:
        """Backward passes."""
        return self.leading + self.probes


@dataclasses.dataclass(frozen=True)
class Leading:
    """The leading columns of a sweep: those it takes, and how many more would pay."""

    sweeps: Callable[[], list[SweepSums]]  # what its passes summed
    dropped: Callable[[], int]  # backward passes before these
    take: Callable[[Split], None]  # makes a pass that takes the place of all others
    num_columns: int

    @property
    def count(self) -> int:
        """Columns that every pass takes exactly."""
        return self.sweeps()[0].leading

    @property
    def spent(self) -> int:
        """Backward passes so far."""
        probes = sum(each.num_probes or 0 for each in self.sweeps())
        return self.dropped() + probes + len(self.sweeps()) * self.count

    def choose(self, drawn: Estimate, count: int, outlook: Outlook, most: float) -> Split | None:
        """More leading columns, if that is clearly cheaper than probes alone; None if not.

        `drawn` is what `count` probes have of the value. `most` probes are as good as all columns.
        """
        ways = self._ways(drawn, count, outlook)
        if len(ways) < 2:
            return None
        stay, *others = ways
        best = min((way.enough for way in others), key=lambda split: split.cost)
        ahead = stay.enough.probes - count + self.count
        pays = PAYS * best.cost <= min(ahead, most) or outlook.left < ahead <= most
        if best.cost <= outlook.left and pays:
            return best
        if min(best.cost, ahead) <= outlook.left:
            return None
        return self._best_within(outlook.left, others, stay.variance / (count + outlook.left))

    def _best_within(self, left: int, others: list[_Way], variance: float) -> Split | None:
        """Where nothing suffices: what leaves the smallest variance, if far less than this one."""
        affordable = [way for way in others if way.least <= left - way.enough.leading]
        if not affordable:
            return None

        def reached(way: _Way) -> float:
            return way.variance / (left - way.enough.leading)

        best = min(affordable, key=reached)
        if GAIN * reached(best) > variance:
            return None
        return Split(best.enough.leading, left - best.enough.leading)

    def _ways(self, drawn: Estimate, count: int, outlook: Outlook) -> list[_Way]:
        """What the columns taken now would still need, and what more of them would."""
        sums, squares = self.sweeps()[0].left.tolist()
        now, ways = RANKS.index(self.count), []
        if not 0.0 < sums[now] < math.inf or not squares[now] or not outlook.stderr:
            return []
        for rank, total, square in list(zip(RANKS, sums, squares, strict=True))[now:]:
            if rank >= self.num_columns:
                break
            variance = count * drawn.variance * square / squares[now]
            least = least_probes(total**2 / square) if square else 2
            probes = max(least, math.ceil(variance / outlook.stderr**2))
            few = few_probes(drawn.value * total / sums[now], outlook.stderr)
            if rank and few < probes:
                least = probes = few
            ways.append(_Way(Split(rank, probes), least, variance))
        return ways


class _Way(NamedTuple):
    enough: Split  # what would do
    least: int  # probes that show their own error
    variance: float  # of one probe
