"""Paper 000, Fig. 6: wrong labels, flatness of the head, and its correlation with the gap."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence

from ...content import Cell, Table
from ...study.statistics import Correlation, spearman
from ..judging.experiment import Experiment, Outcome, Row, titled
from ..judging.findings import estimate
from ..judging.numbers import CONFIDENCE, IntervalEstimate, mean
from ..judging.population import FEW, GAP, why
from ..judging.rows import column, grouped
from ..recipes.recipe import outcome

NOISE, HEAD, WAY = "interventions.label_noise", "head.kappa", "variant"
ALMOST = 1.0 - 1e-9  # Fisher's z of a perfect correlation is infinite


def analyse(experiment: Experiment, rows: Sequence[Row]) -> Outcome:
    """By the recipe, with the difference between the correlations at both ends of the noise."""
    groups = grouped(rows, NOISE)
    ranks = {noise: spearman(column(g, HEAD), column(g, GAP)) for noise, g in groups.items()}
    most = max(ranks)
    without, with_most = ranks[min(ranks)], ranks[most]
    found = outcome(
        experiment,
        rows,
        stronger=strengthening(without, with_most),
        without=without,
        with_most=with_most,
        most=most,
    )
    why = _why(rows, groups) if len(rows) >= FEW else ""
    return dataclasses.replace(found, more=_by_way(rows), why=why)


def _by_way(rows: Sequence[Row]) -> list[Table]:
    """The same two questions within each way of training; nothing where there is only one."""
    ways = grouped(rows, WAY)
    if len(ways) < 2:
        return []
    table: list[list[Cell]] = []
    for way, group in ways.items():
        noise, flatness = column(group, NOISE), column(group, HEAD)
        pairs = ((noise, flatness), (flatness, column(group, GAP)))
        losses = mean(column(group, "train_loss"))
        table.append([way, len(group), losses, *(estimate(spearman(*pair)) for pair in pairs)])
    titles = (
        *("way of training", "n", "training loss"),
        *("Spearman, noise and flatness", "Spearman, flatness and gap"),
    )
    return [
        titled(
            "Within each way of training",
            "Networks that were trained in one way, with all shares of wrong labels. Shown, not "
            "judged.",
            Table(titles, table),
        )
    ]


def _why(rows: Sequence[Row], groups: dict[float, list[Row]]) -> str:
    """What correlates with the gap, and how wrong labels change it."""
    fewest, most = groups[min(groups)], groups[max(groups)]
    ends = {name: [mean(column(g, name)) for g in (fewest, most)] for name in ("train_loss", GAP)}
    (loss, more_loss), (gap, more_gap) = ends.values()
    largest = max(groups, key=lambda noise: mean(column(groups[noise], HEAD)).value)
    return (
        f"{why(rows, HEAD, 'relative flatness of the head')} The training loss counts the wrong "
        f"labels, and so does the gap: from {min(groups):.0%} to {max(groups):.0%} of them the one "
        f"goes from {loss} to {more_loss} and the other from {gap} to {more_gap}, while flatness "
        f"is largest at {largest:.0%}."
    )


def strengthening(less: Correlation, more: Correlation) -> IntervalEstimate:
    """By how much a rank correlation differs between two groups of runs, in Fisher's z.

    The variance of z is (1 + ρ²/2)/(n − 3), after Bonett and Wright.
    """
    z = [math.atanh(max(-ALMOST, min(ALMOST, correlation.value))) for correlation in (less, more)]
    n = less.n + more.n
    if min(less.n, more.n) <= 3:
        return IntervalEstimate(z[1] - z[0], math.nan, math.nan, n)
    variance = sum(
        (1 + correlation.value**2 / 2) / (correlation.n - 3) for correlation in (less, more)
    )
    half = statistics.NormalDist().inv_cdf(0.5 + CONFIDENCE / 2) * math.sqrt(variance)
    return IntervalEstimate(z[1] - z[0], z[1] - z[0] - half, z[1] - z[0] + half, n)
