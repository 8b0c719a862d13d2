"""Paper 002, Fig. 5: 110 minima of LeNet-5, relative flatness against other measures."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...content import Table
from ...study.statistics import Correlation
from ..judging.experiment import Experiment, Outcome, Row, titled
from ..judging.findings import above, fact, missed, verdict, with_added
from ..judging.population import (
    correlations,
    scatter,
    strongest,
    whole_catalogue,
    why,
)
from ..judging.settings import levels_tables

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
    judged = {name: ranks[name] for name in (KAPPA, *RIVALS)}
    best, last = strongest(judged), min(judged, key=lambda name: judged[name].value)
    correlates = above("relative flatness correlates with the gap", ranks[KAPPA])
    findings = [
        correlates,
        fact("more strongly than every other measure", best == KAPPA, f"the first is {best}"),
    ]
    agrees = verdict(findings) if correlates.result == "held" else missed(findings)
    added = [
        fact(
            "the Fisher–Rao norm has the lowest correlation, signs counted",
            last == FISHER_RAO,
            f"{last} has",
        )
    ]
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
            f"layer) with the gap is {ranks[KAPPA]}, that of its sum over layers {ranks[SUM]}; the "
            f"strongest of the five compared is {best} with {ranks[best]}, and the Fisher–Rao norm "
            f"has {ranks[FISHER_RAO]}."
        ),
    )


def _as_the_authors(rows: Sequence[Row], settings: Sequence[str]) -> tuple[Table, Correlation]:
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
