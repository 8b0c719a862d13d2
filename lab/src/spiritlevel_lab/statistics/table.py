"""All statistics of a study: a row a measure, n and exclusions always shown."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from spiritlevel.ground.errors import SpiritlevelError

from .confounding import confounding
from .correlations import COEFFICIENTS, FINDINGS, UNCLEAR, Correlation, kendall, pearson, spearman
from .differences import strongest
from .few_values import Design
from .granulated import Seeds, granulated_kendall
from .grid import Grid, columns_of, parts_of
from .holm import Holm, holm
from .judged import Judged, correlation_judged, partial_judged
from .levels import Levels, levels
from .partial import partial_correlation
from .points import check_confidence, finite_points
from .regression import regression, tails
from .sign_error import Pooling, sign_error
from .tables import JUDGED, MeasureStatistics
from .text import StudyStatistics

LEVELS: tuple[Literal["pearson", "spearman"], ...] = ("pearson", "spearman")
PARTIALS = ("partial_pearson", "partial_spearman")


def summary(
    rows: Sequence[Mapping[str, Any]],
    *,
    confidence: float = 0.95,
    seeds: Seeds = "hold",
    seed_key: str = "seed",
    num_test: int | None = None,
    loss_range: float = 1.0,
    pooling: Pooling = "change",
    min_effective: float = 12.0,
) -> StudyStatistics:
    """Every statistic of every measure.

    Args:
        rows: one mapping a run with "settings" (hyperparameters), "measures" (name to value) and
            "target" (such as the generalization gap), and "confounders" (name to value) if any,
            with their standard errors as "errors" where these are known.
            A missing or non-finite number leaves the run out where that number is needed.
        confidence: of all intervals.
        seeds: see `granulated_kendall`.
        seed_key: the name of the seed in the settings.
        num_test: this and the rest: see `sign_error`.
        loss_range: as above.
        pooling: as above.
        min_effective: as above.
    """
    _check_rows(rows)
    check_confidence(confidence)  # also where no measure is there to ask for an interval
    target = [row["target"] for row in rows]
    settings = Grid.read([row["settings"] for row in rows])
    confounders = columns_of([row.get("confounders", {}) for row in rows])
    clusters, axes, given_seeds = parts_of([row["settings"] for row in rows], seed_key)
    errors = columns_of([row.get("errors", {}) for row in rows])
    given_seeds = given_seeds if clusters is not None else []
    of_runs: dict[str, Any] = {"clusters": clusters, "axes": axes, "seeds": given_seeds}
    design = Design.of(clusters, axes, given_seeds)
    columns = columns_of([row["measures"] for row in rows])
    measures = {}
    for name, values in columns.items():
        # A measure that is a confounder too is judged given the other confounders.
        others = {other: column for other, column in confounders.items() if other != name}
        pair: dict[str, Any] = {"values": values, "target": target, "confidence": confidence}
        partial = {
            kind: partial_correlation(confounders=others, kind=kind, clusters=clusters, **pair)
            for kind in LEVELS
            if others
        }
        found_levels: dict[str, Levels] = {
            kind: levels(settings=clusters, axes=axes, seeds=given_seeds, kind=kind, **pair)
            for kind in LEVELS
            if clusters is not None
        }
        shared: dict[str, Correlation] = {}
        if found_levels:
            judged = found_levels["spearman"].judged
        else:
            judged, _, shared = correlation_judged(design=design, **pair)
        given, confounded = None, None
        if others:
            given = partial_judged(confounders=others, **of_runs, **pair)
            fixed = {each: others[each] for each in partial["spearman"].given}
            confounded = confounding(values, target, fixed, given, errors=errors)
        measures[name] = MeasureStatistics(
            name=name,
            pearson=pearson(**pair),
            spearman=spearman(**pair),
            kendall=kendall(**pair),
            judged=judged,
            tails=tails(**pair),
            partial_pearson=partial.get("pearson"),
            partial_spearman=partial.get("spearman"),
            given=given,
            confounding=confounded,
            regression=regression(**pair),
            granulated=granulated_kendall(values, target, settings, seeds=seeds, seed_key=seed_key),
            sign_error=sign_error(
                *(values, target, settings),
                num_test=num_test,
                loss_range=loss_range,
                pooling=pooling,
                min_effective=min_effective,
                seed_key=seed_key,
            ),
            levels=found_levels,
            shared=shared,
        )
    with_target = finite_points(target=target)
    found: dict[str, dict[str, float]] = {kind: {} for kind in (*COEFFICIENTS, *PARTIALS)}
    for name, row in measures.items():
        for kind in found:
            correlation: Correlation | None = getattr(row, kind)
            found[kind][name] = math.nan if correlation is None else correlation.p
    families = {kind: holm(p_values) for kind, p_values in found.items()}
    families[JUDGED] = holm({name: row.judged.p for name, row in measures.items()})
    return StudyStatistics(
        measures={name: _judged(row, families) for name, row in measures.items()},
        n=len(rows),
        without_target=with_target.excluded,
        confounders=tuple(confounders),
        holm=families,
        confidence=confidence,
        strongest=strongest(
            *(columns, target, {name: row.spearman.value for name, row in measures.items()}),
            confidence=confidence,
            **of_runs,
        ),
        settings=0 if clusters is None else len({clusters[place] for place in with_target.kept}),
    )


def _check_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    if not rows:
        raise SpiritlevelError("The 'rows' argument must have at least one run. Got none.")
    for i, row in enumerate(rows):
        missing = [key for key in ("settings", "measures", "target") if key not in row]
        if missing:
            raise SpiritlevelError(
                "Each of the 'rows' must be a mapping with 'settings', 'measures' and 'target'. "
                f"Row {i} lacks {', '.join(missing)} and has {', '.join(row) or 'nothing'}. A run "
                "that failed keeps its row, with None as target."
            )


def _judged(row: MeasureStatistics, families: Mapping[str, Holm]) -> MeasureStatistics:
    """The row with its corrected p and the verdict that follows."""
    corrected = {
        kind: family.adjusted[row.name]
        for kind, family in families.items()
        if row.name in family.adjusted
    }
    return dataclasses.replace(row, holm=corrected, verdict=_verdict(row, corrected))


def _verdict(row: MeasureStatistics, corrected: Mapping[str, float]) -> str:
    """Spearman's, unless the correction over measures or the confounders take it away."""
    verdict = row.judged.verdict
    if verdict not in FINDINGS:
        return verdict
    if corrected[JUDGED] > 1.0 - row.spearman.confidence:
        return f"{UNCLEAR} after Holm"
    given = row.given
    if given is None or row.confounding is None:
        return verdict
    if row.confounding.is_undone:
        return f"{verdict}; given the confounders: unclear, as measured with their errors"
    if given.verdict == verdict:
        return f"{verdict}, also given the confounders"
    if given.verdict in FINDINGS:
        return f"{verdict}, but turns round given the confounders"
    return f"{verdict}; given the confounders: {given.verdict.split(':')[0]}"


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
    design = Design.of(clusters, axes, seeds)
    judged = {
        name: correlation_judged(values, target, design, confidence=confidence)[0]
        for name, values in columns_of([row["measures"] for row in rows]).items()
    }
    corrected = holm({name: each.p for name, each in judged.items()}).adjusted
    return {
        name: Association(
            each,
            corrected.get(name, math.nan),
            each.verdict in FINDINGS and corrected[name] <= 1.0 - confidence,
        )
        for name, each in judged.items()
    }
