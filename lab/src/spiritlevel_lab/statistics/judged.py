"""The one interval and the one p that a number is judged by: the widest honest interval.

Runs of one setting are alike, settings with the same optimizer may be alike, and so may runs with
the same seed. Which of these decides is not known, so each is left out in turn, and the widest
interval judges. What has too few values to be left out is held fixed, see `few_values`: the
interval then reaches over the correlation with it and without it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Literal

from .clusters import SEED, clustered, widest
from .correlations import COEFFICIENTS, Correlation, Estimated
from .few_values import Design, listed
from .partial import partial_correlation
from .points import Numbers

RUNS, SETTINGS, SEEDS = "runs", "settings", "seeds"


@dataclasses.dataclass(frozen=True)
class Judged(Estimated):
    """A number with the interval and the p that judge it: p < 0.05 where 95 % leave out 0."""

    value: float
    low: float  # nan, as `high` and `p`, where the design has no honest interval
    high: float
    p: float
    n: int  # runs
    over: str  # what was left out in turn: "settings", "seeds", "groups with the same lr", "runs"
    count: int  # how many of these there are
    fixed: tuple[str, ...]  # axes with too few values, held fixed as well
    confidence: float
    reason: str = ""  # why there is no interval, or what qualifies it

    @property
    def counted(self) -> str:
        """What the interval counts, in words: "over 6 groups with the same optimizer"."""
        if math.isnan(self.low):
            return ""
        fixed = f", with and without {listed(self.fixed)} held fixed" if self.fixed else ""
        return f"over {self.count} {self.over}{fixed}"


def judge(
    found: Correlation,
    shared: Mapping[str, Correlation],
    held: Mapping[str, Correlation],
    design: Design,
) -> Judged:
    """The widest of the intervals over settings (or runs) and over what they share.

    Args:
        found: over settings; over runs where no setting is repeated.
        shared: over groups of runs, by what they share.
        held: the same, with axes that have few values held fixed.
        design: that of the runs.
    """
    free = {"": found, **shared}
    name = widest(free)
    judged = _of(free[name], _over(name, found), design)
    failed = next((each for each in free.values() if math.isnan(each.low)), None)
    if failed is not None or not design.is_honest:
        return _without_interval(judged, design.reason if failed is None else failed.reason)
    if held:
        name = widest(held)
        without = next((each for each in held.values() if math.isnan(each.low)), None)
        if without is not None:
            reason = f"with {listed(design.few)} held fixed: {without.reason}"
            return _without_interval(judged, reason)
        judged = _hull(judged, _of(held[name], _over(name, found), design))
    return agreeing(judged)


def agreeing(judged: Judged) -> Judged:
    """Interval and p with one answer: clear where both say so, else the other gives way.

    They are two tests only where runs are counted, or nothing changes what is left out.
    """
    level = 1.0 - judged.confidence
    if not judged.is_clear:
        return dataclasses.replace(judged, p=max(judged.p, level))
    if judged.p < level:
        return judged
    return dataclasses.replace(judged, low=min(0.0, judged.low), high=max(0.0, judged.high))


def _hull(one: Judged, other: Judged) -> Judged:
    """Both intervals in one; what is counted is that of the larger p."""
    larger = one if one.p >= other.p else other
    return dataclasses.replace(
        one,
        low=min(one.low, other.low),
        high=max(one.high, other.high),
        p=larger.p if one.value * other.value > 0 else 1.0,
        over=larger.over,
        count=larger.count,
    )


def _of(chosen: Correlation, over: str, design: Design) -> Judged:
    return Judged(
        *(chosen.value, chosen.low, chosen.high, chosen.p, chosen.n),
        over=over,
        count=chosen.n if chosen.clusters is None else chosen.clusters,
        fixed=design.few,
        confidence=chosen.confidence,
        reason=chosen.reason,
    )


def _without_interval(judged: Judged, reason: str) -> Judged:
    nan = math.nan
    return dataclasses.replace(judged, low=nan, high=nan, p=nan, reason=reason)


def _over(name: str, found: Correlation) -> str:
    if name:
        return SEEDS if name == SEED else f"groups with the same {name}"
    return RUNS if found.clusters is None else SETTINGS


JudgedOver = tuple[Judged, Correlation, dict[str, Correlation]]


def judge_over(design: Design, over: Callable[..., Correlation]) -> JudgedOver:
    """What judges, the same over settings (or runs) alone, and over what they share.

    Args:
        design: of the runs.
        over: the correlation that counts groups, called with the group of each run (None counts
            runs), with what these share ("" for settings) and with the columns held fixed.
    """
    found = over(design.settings, "", {})
    shared = {name: over(groups, name, {}) for name, groups in design.groups.items()}
    held = {}
    if design.held and design.is_honest:
        every = {"": design.settings, **design.groups}
        held = {name: over(groups, name, design.held) for name, groups in every.items()}
    return judge(found, shared, held, design), found, shared


def correlation_judged(
    values: Numbers,
    target: Numbers,
    design: Design,
    *,
    kind: Literal["pearson", "spearman"] = "spearman",
    confidence: float = 0.95,
) -> JudgedOver:
    """The correlation over all runs, as `judge_over` gives it."""
    values, target = list(values), list(target)
    how: dict[str, Any] = {"confidence": confidence}

    def over(groups: Sequence[Hashable] | None, name: str, held: Mapping[str, Any]) -> Correlation:
        if held:
            return partial_correlation(values, target, held, kind=kind, clusters=groups, **how)
        if groups is None:
            return COEFFICIENTS[kind](values, target, **how)
        called = f"groups by {name}" if name else "settings"
        return clustered(values, target, groups, kind=kind, called=called, **how)

    return judge_over(design, over)


def partial_judged(
    values: Numbers,
    target: Numbers,
    confounders: Mapping[str, Numbers],
    *,
    clusters: Sequence[Hashable] | None,
    axes: Mapping[str, Sequence[object]],
    seeds: Sequence[object] = (),
    kind: Literal["pearson", "spearman"] = "spearman",
    confidence: float = 0.95,
) -> Judged:
    """What a measure says once confounders are held fixed, with its widest honest interval.

    Args:
        values: of the measure, one a run; None or a non-finite number leaves the run out.
        target: what it should predict.
        confounders: by name, one number a run.
        clusters: the setting of each run; None where no setting is repeated.
        axes: what the settings consist of, by name: its value in each run.
        seeds: that of each run.
        kind: "pearson" or "spearman".
        confidence: of the interval.
    """
    values, target = list(values), list(target)
    columns = {name: list(column) for name, column in confounders.items()}

    def over(groups: Sequence[Hashable] | None, _: str, held: Mapping[str, Any]) -> Correlation:
        fixed = {**columns, **held}
        return partial_correlation(
            values, target, fixed, kind=kind, confidence=confidence, clusters=groups
        )

    return judge_over(Design.of(clusters, axes, seeds), over)[0]
