"""The one interval and the one p that a number is judged by: the widest honest interval.

Runs of one setting are alike, settings with the same optimizer may be alike, and so may runs with
the same seed. Which of these decides is not known, so each is counted in turn, and the widest
interval judges. Where one axis decides, an interval over settings alone calls a third to a half of
true nulls clear. The simulation in `tests/statistics/test_rules.py` holds these numbers.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from .clusters import MIN_CLUSTERS, SEED, widest
from .correlations import Correlation, verdict_of
from .intervals import Interval

RUNS, SETTINGS, SEEDS = "runs", "settings", "seeds"


@dataclasses.dataclass(frozen=True)
class Judged:
    """A number with the interval and the p that judge it: p < 0.05 where 95 % leave out 0."""

    value: float
    low: float  # nan, as `high` and `p`, where the design has no honest interval
    high: float
    p: float
    n: int  # runs
    over: str  # what was left out in turn: "settings", "seeds", "groups with the same lr", "runs"
    count: int  # how many of these there are
    confidence: float
    reason: str = ""  # why there is no interval, or what qualifies it

    @property
    def verdict(self) -> str:
        """What may be claimed from it, in words."""
        ends = Interval(self.low, self.high, self.reason)
        return verdict_of(self.value, ends, self.p, self.confidence)

    @property
    def is_clear(self) -> bool:
        """Whether its interval lies on one side of 0."""
        return self.low > 0 or self.high < 0

    def __str__(self) -> str:
        if math.isnan(self.value):
            return f"undefined ({self.reason})"
        if math.isnan(self.low):
            return f"{self.value:+.2f} [no interval]"
        return f"{self.value:+.2f} [{self.low:+.2f}, {self.high:+.2f}]"


def judge(
    found: Correlation, shared: Mapping[str, Correlation], uncounted: Sequence[str] = ()
) -> Judged:
    """The widest of the interval over settings (or runs) and those over what they share.

    Args:
        found: over settings; over runs where no setting is repeated.
        shared: by what is shared, as from `over_shared`.
        uncounted: what is shared and has too few values, as from `uncounted`.
    """
    name = widest({"": found, **shared})
    chosen = shared[name] if name else found
    judged = Judged(
        *(chosen.value, chosen.low, chosen.high, chosen.p, chosen.n),
        over=_over(name, found),
        count=chosen.n if chosen.clusters is None else chosen.clusters,
        confidence=chosen.confidence,
        reason=chosen.reason,
    )
    axes = [name for name in uncounted if name != SEED]
    if not axes or math.isnan(judged.low):
        return judged
    return dataclasses.replace(
        judged, low=math.nan, high=math.nan, p=math.nan, reason=no_honest_interval(axes)
    )


def no_honest_interval(axes: Sequence[str]) -> str:
    """Why a design in which all axes have few values cannot tell what decides.

    >>> no_honest_interval(["lr", "batch_size"])
    'any of lr and batch_size may decide, and none has 4 values, so that it could be counted'
    """
    named = " and ".join(axes)
    return (
        f"any of {named} may decide, and none has {MIN_CLUSTERS} values, so that it could be "
        "counted"
    )


def _over(name: str, found: Correlation) -> str:
    if name:
        return SEEDS if name == SEED else f"groups with the same {name}"
    return RUNS if found.clusters is None else SETTINGS
