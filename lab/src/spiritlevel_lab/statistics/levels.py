"""A correlation within settings, between settings and over all runs: three different questions.

Over all runs both differences are mixed. If settings differ in one direction and the networks of
one setting in the other, the sign of the mixture says nothing about a single network (Simpson's
paradox).
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Hashable, Mapping, Sequence

from .clusters import (
    numbered,
    widest,
)
from .correlations import COEFFICIENTS, WEAK, Correlation, Estimated, of_all
from .few_values import Design
from .judged import Judged, correlation_judged
from .permutations import LevelKind, two_way
from .points import Array, Indices, Numbers, finite_points, is_constant, numpy

MIN_RUNS = 3  # of a setting; what few say is made up for by many settings


@dataclasses.dataclass(frozen=True)
class Within(Estimated):
    """The correlation within settings, less what seeds do in every setting; see `two_way`.

    Its interval and its p are those of one permutation test.
    """

    value: float
    low: float
    high: float
    p: float
    p_seeds: float  # where seeds alone are exchanged: exact whatever settings have in common
    by_setting: Mapping[str, float]  # of the settings that have one
    num_settings: int  # with or without one
    confidence: float
    reason = "no setting has enough runs"  # where there is no value

    @property
    def n(self) -> int:
        """The number of settings that the mean is taken over."""
        return len(self.by_setting)

    @property
    def mean(self) -> float:
        """Of the correlations in single settings; what seeds do in every setting is in it."""
        return statistics.fmean(self.by_setting.values()) if self.by_setting else math.nan

    @property
    def num_positive(self) -> int:
        """Settings within which the correlation is above 0."""
        return sum(value > 0 for value in self.by_setting.values())


@dataclasses.dataclass(frozen=True)
class Levels:
    """The same two columns on three levels; `pooled` counts runs and `clustered` settings.

    `shared` counts groups of runs, by what they share, where that has values enough.
    """

    pooled: Correlation
    clustered: Correlation
    between: Correlation
    within: Within
    judged: Judged  # over all runs, with the one interval and the one p that it is judged by
    shared: Mapping[str, Correlation] = dataclasses.field(default_factory=dict)

    @property
    def widest(self) -> str:
        """What those groups share whose interval is the widest; "" where there is none."""
        return widest(self.shared)

    @property
    def doubt(self) -> str:
        """What takes away a finding that counts settings alone, as a sentence; or ""."""
        if not self.clustered.is_clear or self.judged.is_clear:
            return ""
        alone = f"Counting the {self.clustered.clusters} settings alone, the interval would be "
        if math.isnan(self.judged.low):
            return f"{alone}{_ends(self.clustered)}, but none is honest: {self.judged.reason}."
        return (
            f"{alone}{_ends(self.clustered)}; {self.judged.counted} it is {_ends(self.judged)}, "
            "which contains 0."
        )

    @property
    def disagrees(self) -> bool:
        """Whether the sign within settings is not that over all runs, or not that between them.

        Correlations below 0.1 have no sign that counts.
        """
        within = self.within.value
        return any(
            min(abs(within), abs(other)) >= WEAK and within * other < 0
            for other in (self.pooled.value, self.between.value)
        )

    @property
    def signs(self) -> str | None:
        """Whether those of the levels "agree" or "differ", or one is "near 0"; None without one."""
        values = (self.within.value, self.between.value, self.pooled.value)
        if any(math.isnan(value) for value in values):
            return None
        if self.disagrees:
            return "differ"
        return "near 0" if min(map(abs, values)) < WEAK else "agree"

    @property
    def sentence(self) -> str:
        """What the levels say together; "" where there is nothing to say."""
        within = self.within
        if not within.by_setting:
            return self.doubt
        levels = (
            f"within one setting the correlation is {within} (mean of single settings "
            f"{within.mean:+.2f}, positive in {within.num_positive} of {within.n} settings"
            f"{self._too_few}); between the means of "
            f"{self.between.n} settings it is {self.between}; over all {self.pooled.n} runs "
            f"{self.judged}."
        )
        if not self.disagrees:
            said = f"{levels[0].upper()}{levels[1:]}"
        else:
            said = (
                f"The signs differ between the levels (Simpson's paradox): {levels} What holds "
                "between settings need not hold between networks of one setting."
            )
        return f"{said} {self.doubt}".rstrip()

    @property
    def _too_few(self) -> str:
        left = self.within.num_settings - self.within.n
        return (
            f", {left} more {'has' if left == 1 else 'have'} too few runs that differ"
            if left
            else ""
        )


def levels(
    values: Numbers,
    target: Numbers,
    settings: Sequence[Hashable],
    *,
    axes: Mapping[str, Sequence[object]] | None = None,
    seeds: Sequence[object] = (),
    kind: LevelKind = "spearman",
    confidence: float = 0.95,
) -> Levels:
    """The correlation within settings, between them, and over all runs.

    Args:
        values: of the measure, one a run; None or a non-finite number leaves the run out.
        target: what it should predict.
        settings: the setting of each run; its text names it.
        axes: what the settings consist of, by name, with its value in each run: then intervals
            count what settings share as well.
        seeds: that of each run, if settings share them: then intervals count seeds as well.
        kind: "pearson" or "spearman".
        confidence: of all intervals.

    >>> x = [1, 2, 3, 4, 3, 4, 5, 6, 5, 6, 7, 8]  # rises within each setting,
    >>> y = [7, 8, 8, 9, 4, 5, 5, 6, 1, 2, 2, 3]  # and falls from setting to setting
    >>> found = levels(x, y, ["a"] * 4 + ["b"] * 4 + ["c"] * 4)
    >>> round(found.within.value, 2), round(found.pooled.value, 2), found.disagrees
    (0.95, -0.63, True)
    """
    values, target, seeds = list(values), list(target), list(seeds)
    points = finite_points(values=values, target=target)
    x, y = points.columns
    names = [str(settings[place]) for place in points.kept]
    places, num = numbered(names)
    members = [numpy().flatnonzero(places == group) for group in range(num)]
    means = [[float(column[group].mean()) for group in members] for column in (x, y)]
    correlation = COEFFICIENTS[kind]
    judged, over_settings, shared = correlation_judged(
        values, target, Design.of(settings, axes or {}, seeds), kind=kind, confidence=confidence
    )
    return Levels(
        pooled=correlation(values, target, confidence=confidence),
        clustered=over_settings,
        between=correlation(*means, confidence=confidence),
        within=_within(
            *(kind, x, y, {names[group[0]]: group for group in members}, confidence),
            [str(seeds[place]) for place in points.kept] if seeds else [],
        ),
        judged=judged,
        shared=shared,
    )


def _within(
    kind: LevelKind,
    x: Array,
    y: Array,
    members: Mapping[str, Indices],
    confidence: float,
    seeds: Sequence[str],
) -> Within:
    usable = {
        name: group
        for name, group in members.items()
        if len(group) >= MIN_RUNS and not (is_constant(x[group]) or is_constant(y[group]))
    }
    by_setting = {name: of_all(kind, x[group], y[group]) for name, group in usable.items()}
    found = two_way(kind, x, y, list(usable.values()), seeds, confidence=confidence)
    numbers = (found.value, found.low, found.high, found.p, found.p_seeds)
    return Within(*numbers, by_setting, len(members), confidence)


def _ends(correlation: Correlation | Judged) -> str:
    if math.isnan(correlation.low):
        return "no interval"
    return f"[{correlation.low:+.2f}, {correlation.high:+.2f}]"
