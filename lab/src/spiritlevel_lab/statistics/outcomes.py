"""Every measure with several outcomes: they may disagree, and one of them alone misleads."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from .clusters import over_shared
from .correlations import FINDINGS, spearman
from .few_values import Design
from .grid import columns_of, parts_of
from .holm import holm
from .judged import Judged
from .levels import levels
from .table import over_runs
from .text import JUDGED, StudyStatistics


@dataclasses.dataclass(frozen=True)
class Association:
    """Spearman's ρ of a measure with an outcome, and what may be said of it."""

    judged: Judged
    p: float  # corrected by Holm over the measures, for this outcome
    is_clear: bool

    def unjudged(self) -> Association:
        """The same numbers, from which nothing may be concluded."""
        return dataclasses.replace(self, is_clear=False)


Associations = Mapping[str, Association]  # by measure


def associations(statistics: StudyStatistics) -> dict[str, Association]:
    """What the verdicts on one outcome rest on."""
    return {
        name: Association(row.judged, row.holm.get(JUDGED, math.nan), row.is_finding)
        for name, row in statistics.measures.items()
    }


def associated(
    rows: Sequence[Mapping[str, Any]], *, confidence: float = 0.95, seed_key: str = "seed"
) -> dict[str, Association]:
    """The same from rows as for `summary`, without all else that it computes."""
    target = [row["target"] for row in rows]
    clusters, axes, seeds = parts_of([row["settings"] for row in rows], seed_key)
    plain = Design.of(None, axes)
    judged = {}
    for name, values in columns_of([row["measures"] for row in rows]).items():
        pair: dict[str, Any] = {"values": values, "target": target, "confidence": confidence}
        if clusters is None:
            shared = over_shared(groups=plain.groups, **pair)
            judged[name] = over_runs(spearman(**pair), shared, plain, **pair)
        else:
            judged[name] = levels(settings=clusters, axes=axes, seeds=seeds, **pair).judged
    corrected = holm({name: each.p for name, each in judged.items()}).adjusted
    return {
        name: Association(
            each,
            corrected.get(name, math.nan),
            each.verdict in FINDINGS and corrected[name] <= 1.0 - confidence,
        )
        for name, each in judged.items()
    }
