"""Partial correlations with the one interval that judges them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Literal

from .correlations import Correlation
from .few_values import Design, with_few_fixed
from .judged import Judged, judge
from .partial import partial_correlation
from .points import Numbers


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
    design = Design.of(clusters, axes, seeds)
    values, target = list(values), list(target)
    columns = {name: list(column) for name, column in confounders.items()}

    def over(groups: Sequence[Hashable] | None) -> Correlation:
        return partial_correlation(
            values, target, columns, kind=kind, confidence=confidence, clusters=groups
        )

    held = with_few_fixed(
        values, target, design, kind=kind, confidence=confidence, confounders=columns
    )
    shared = {name: over(groups) for name, groups in design.groups.items()}
    return judge(over(clusters), shared, held, design)
