"""Paper 002, Fig. 5: 110 minima of LeNet-5, relative flatness against other measures."""

from __future__ import annotations

import math
from collections.abc import Sequence

from spiritlevel.records.content import Table

from ...claims.experiment import Experiment, Outcome, Row, titled
from ...claims.findings import above, below, every, missed, verdict, with_added
from ...claims.population import GAP, correlations, scatter, whole_catalogue, why
from ...claims.settings import difference_of, levels_tables
from ...statistics import Judged

KAPPA = "head.kappa"  # one layer, as in the paper, which does not say which one
SUM = "relative.kappa"  # of all layers
PAC_BAYES = "pac_bayes.sigma"  # 1/σ²: large is sharp, as with all others
FISHER_RAO = "norms.fisher_rao"
NORM = "norms.weight"
RIVALS = ("curvature.trace", FISHER_RAO, PAC_BAYES, NORM)


BOUND = "‖θ‖²/(4σ²) + ln(n/σ) + 10"
AUTHORS_BOUND = "the same with √σ for σ"


def analyse(experiment: Experiment, rows: Sequence[Row]) -> Outcome:
    """Relative flatness must correlate with the gap, and more than the paper's other measures."""
    settings = experiment.settings
    table, ranks = correlations(rows, experiment.measures, settings)
    authors, authors_rank = _as_the_authors(rows, settings)
    correlates = above("relative flatness correlates with the gap", ranks[KAPPA])
    findings = [
        correlates,
        every(
            "more strongly than every other measure (its rank correlation, less theirs)",
            [above(name, difference_of(rows, KAPPA, name, GAP, settings)) for name in RIVALS],
        ),
    ]
    agrees = verdict(findings) if correlates.result == "held" else missed(findings)
    others = [KAPPA, *(name for name in RIVALS if name != FISHER_RAO)]
    added = [
        every(
            "the Fisher–Rao norm has the lowest correlation, signs counted (its own, less theirs)",
            [below(name, difference_of(rows, FISHER_RAO, name, GAP, settings)) for name in others],
        )
    ]
    compared = ", ".join(f"{ranks[name]} ({name})" for name in RIVALS)
    return Outcome(
        table=table,
        figure=scatter(rows, KAPPA, settings),
        why=(
            f"{why(rows, KAPPA, settings=settings)} The PAC-Bayes measure as the authors' code "
            f"computes it has a rank correlation of {authors_rank} with the gap; this was examined "
            "after the runs and is not judged."
        ),
        findings=[*findings, *added],
        agrees=with_added(agrees, added),
        more=[
            *levels_tables(rows, experiment.measures, settings),
            authors,
            whole_catalogue(rows, settings),
        ],
        conclusion=(
            f"Over {len(rows)} minima the rank correlation of relative flatness (of the last "
            f"layer) with the gap is {ranks[KAPPA]}, that of its sum over layers {ranks[SUM]}; "
            f"those of the others that are compared are {compared}."
        ),
    )


def _as_the_authors(rows: Sequence[Row], settings: Sequence[str]) -> tuple[Table, Judged]:
    """Their PAC-Bayes measure, from the columns that it is made of, and its rank correlation."""
    with_bounds = [{**row, **_bounds(row)} for row in rows]
    table, ranks = correlations(with_bounds, (BOUND, AUTHORS_BOUND), settings)
    shown = titled(
        "The PAC-Bayes measure of the authors' code",
        "For its Fig. 5 the published code draws not 1/σ², but a bound made of it and of the norm "
        "of the weights; and since it takes noise of standard deviation σ², its σ is the root of "
        "the one here. Computed from pac_bayes.sigma and norms.weight (with the biases, which that "
        "code leaves out); n is the same for all networks. Shown, not judged.",
        table,
    )
    return shown, ranks[AUTHORS_BOUND]


def _bounds(row: Row) -> dict[str, float]:
    """Both bounds without ln n; nan where the run lacks a number."""
    flatness, norm = row.get(PAC_BAYES), row.get(NORM)
    if flatness is None or norm is None or not flatness > 0:
        return dict.fromkeys((BOUND, AUTHORS_BOUND), math.nan)
    noise = {BOUND: flatness**-0.5, AUTHORS_BOUND: flatness**-0.25}
    return {name: norm**2 / (4 * s**2) - math.log(s) + 10 for name, s in noise.items()}
