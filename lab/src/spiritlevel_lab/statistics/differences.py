"""Differences of two correlations over the same runs: "strongest" is a claim, too.

Two measures of the same networks share most of their error, so their intervals may overlap where
the difference is clear, and the other way round. What is left out is left out of both.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Literal

from .clusters import MIN_CLUSTERS, in_blocks, numbered, student_quantile
from .correlations import Correlation, undefined
from .few_values import Design
from .judged import Judged, judge, judge_over
from .partial import partials_of_kept
from .points import (
    Array,
    Numbers,
    check_confidence,
    finite_points,
    numpy,
    scipy_stats,
    why_undefined,
)


def difference(
    one: Numbers,
    other: Numbers,
    target: Numbers,
    *,
    clusters: Sequence[Hashable] | None,
    axes: Mapping[str, Sequence[object]],
    seeds: Sequence[object] = (),
    kind: Literal["pearson", "spearman"] = "spearman",
    sizes: bool = False,
    confidence: float = 0.95,
) -> Judged:
    """The correlation of one measure with the target less that of another, and its interval.

    Args:
        one: the first measure, one number a run; None or a non-finite number leaves the run out.
        other: the second.
        target: what they should predict.
        clusters: the setting of each run; None where no setting is repeated: then runs count.
        axes: what the settings consist of, by name: its value in each run.
        seeds: that of each run.
        kind: "pearson" or "spearman".
        sizes: compare sizes: a correlation of −0.8 is then stronger than one of +0.5.
        confidence: of the interval.
    """
    check_confidence(confidence)
    points = finite_points(one=one, other=other, target=target)
    x, x2, y = points.columns
    kept = [int(place) for place in points.kept]
    design = Design.of(
        None if clusters is None else [clusters[place] for place in kept],
        {name: [column[place] for place in kept] for name, column in axes.items()},
        [seeds[place] for place in kept] if len(seeds) else (),
    )
    reason = why_undefined(points, **{"first measure": x, "second measure": x2, "target": y})
    if reason:
        return judge(undefined("difference", reason, points, confidence), {}, {}, design)

    np = numpy()

    def over(
        groups: Sequence[Hashable] | None, shared: str, held: Mapping[str, Any]
    ) -> Correlation:
        name = f"groups with the same {shared}" if shared else "runs" if not groups else "settings"
        places, num = numbered(range(points.n) if groups is None else groups)
        blocks = in_blocks(places)
        rows = np.arange(-1, int(blocks.max()) + 1)[:, None] != blocks  # the first keeps all
        fixed = {each: np.array(column) for each, column in held.items()}
        pair = [partials_of_kept(kind, each, y, fixed, rows.astype(float)) for each in (x, x2)]
        first, second = (np.sign(each[0]) * each if sizes else each for each in pair)
        value, low, high, p, reason = _jackknifed(first - second, num, name, confidence)
        counts = points.n, points.excluded
        method = f"jackknife over {num} {name}"
        cluster_count = None if groups is None else num
        return Correlation(
            *("difference", value, low, high, p, *counts, method, confidence),
            *(tuple(held), reason, cluster_count),
        )

    return judge_over(design, over)[0]


@dataclasses.dataclass(frozen=True)
class Strongest:
    """The measure with the largest correlation, and how much larger it is than the others."""

    name: str
    differences: Mapping[str, Judged]  # of the sizes of ρ, by the other measure: strongest first

    @property
    def second(self) -> str:
        """The measure that comes closest."""
        return next(iter(self.differences))

    @property
    def difference(self) -> Judged:
        """How much larger its |ρ| is than that of the second."""
        return self.differences[self.second]

    @property
    def not_exceeded(self) -> tuple[str, ...]:
        """Measures whose correlation is not clearly smaller."""
        return tuple(name for name, each in self.differences.items() if not each.low > 0)

    @property
    def sentence(self) -> str:
        """Whether it may be called the strongest."""
        size = f"{self.name} has the largest |ρ|"
        total, left = len(self.differences), self.not_exceeded
        if not left:
            return f"{size}, clearly larger than that of each of the {total} others."
        found = self.differences[left[0]]
        return (
            f"{size}, but it is not clearly larger than that of {len(left)} of the {total} others: "
            f"{left[0]} differs by {found}."
        )


def strongest(
    measures: Mapping[str, Numbers], target: Numbers, sizes: Mapping[str, float], **how: Any
) -> Strongest | None:
    """The measure with the largest |ρ| compared with each other one; None with fewer than two.

    Args:
        measures: by name, one number a run.
        target: what they should predict.
        sizes: the correlation of each; nan where there is none.
        how: see `difference`.
    """
    known = {name: abs(size) for name, size in sizes.items() if not math.isnan(size)}
    ordered = sorted(known, key=lambda name: known[name], reverse=True)
    if len(ordered) < 2:
        return None
    first, target = list(measures[ordered[0]]), list(target)
    return Strongest(
        ordered[0],
        {
            name: difference(first, measures[name], target, sizes=True, **how)
            for name in ordered[1:]
        },
    )


def _jackknifed(
    differences: Array, num: int, called: str, confidence: float
) -> tuple[float, float, float, float, str]:
    """Value, both ends, p and a reason; the first difference is that of all, the rest left out."""
    np, student = numpy(), scipy_stats().t
    value, left = float(differences[0]), differences[1:]
    nan = math.nan
    if math.isnan(value):
        return nan, nan, nan, nan, "one of the correlations does not exist"
    if num < MIN_CLUSTERS:
        return value, nan, nan, nan, f"only {num} {called}, at least {MIN_CLUSTERS} are needed"
    if not np.isfinite(left).all():
        return value, nan, nan, nan, f"without one of the {num} {called} there is no correlation"
    error = math.sqrt((len(left) - 1) / len(left) * float(((left - value) ** 2).sum()))
    half = student_quantile(confidence, len(left) - 1) * error
    p = 1.0 if error == 0.0 else float(2.0 * student.sf(abs(value) / error, len(left) - 1))
    return value, value - half, value + half, p, ""
