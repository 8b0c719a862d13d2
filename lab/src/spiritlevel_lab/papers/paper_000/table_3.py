"""Paper 000, Table 3 and Fig. 3 (a): flatness of the head and the gap over 84 ResNet-18."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from spiritlevel.math.student import t_quantile

from ...claims.contrasts import group_points
from ...claims.experiment import Experiment, Outcome, Row
from ...claims.findings import Finding, above, agreeing, estimate, verdict
from ...claims.numbers import CONFIDENCE, IntervalEstimate, mean, plain
from ...claims.population import (
    CONFOUNDERS,
    GAP,
    correlations,
    finite_rows,
    measured,
    on_three_levels,
    squared,
    whole_catalogue,
)
from ...claims.rows import column, grouped
from ...claims.scale import library_study
from ...claims.settings import judged_of, levels_tables, partial_of
from ...statistics import Judged, Regression, regression, spearman

STUDY, HEAD = "000-table-3", "head.kappa"
FLATNESS = "relative flatness of the head"
SGD, ADAMW = "SGD", "AdamW"
OPTIMIZERS = {"sgd": SGD, "adamw": ADAMW}  # by how the names of the variants begin
ByRate = dict[tuple[str, float], list[Row]]  # optimizer and learning rate
OTHERS = ("head.trace", "curvature.trace", "relative.kappa", "norms.weight")
PEARSON, SPEARMAN = "Pearson correlation", "Spearman correlation"
LOGARITHM = "of its logarithm"


def by_optimizer_and_rate(rows: Sequence[Row]) -> ByRate:
    """Runs by optimizer and rate; the study says which rate the name of a variant stands for."""
    presets = library_study(STUDY).presets
    scales = [library_study(STUDY, preset) for preset in ("", *presets)]
    rates = {name: variant["lr"] for scale in scales for name, variant in scale.variants.items()}
    groups: ByRate = {}
    for prefix, optimizer in OPTIMIZERS.items():
        runs = [
            row for row in rows if row["variant"] in rates and row["variant"].startswith(prefix)
        ]
        for row in sorted(runs, key=lambda row: rates[row["variant"]]):
            groups.setdefault((optimizer, rates[row["variant"]]), []).append(row)
    return groups


def analyse(experiment: Experiment, rows: Sequence[Row]) -> Outcome:
    """Both correlations of the head's relative flatness with the gap, beside the paper's."""
    settings = experiment.settings
    shown = measured(rows, (HEAD, *OTHERS))
    table, _ = correlations(rows, shown, settings)
    line = regression(column(rows, HEAD), column(rows, GAP))
    judged = {
        PEARSON: judged_of(rows, HEAD, GAP, settings, "pearson"),
        LOGARITHM: judged_of(rows, HEAD, GAP, settings, "pearson", log=True),
        SPEARMAN: judged_of(rows, HEAD, GAP, settings),
    }
    groups = _groups(rows, by_optimizer_and_rate(rows))
    findings = _parts(experiment, judged)
    return Outcome(
        table=table,
        figure=group_points(
            {name: drawn for name, group in groups.items() if (drawn := finite_rows(group, HEAD))},
            *(HEAD, GAP, HEAD, "generalization gap"),
            fitted=True,
        ),
        more=[
            *levels_tables(rows, shown, settings),
            whole_catalogue(rows, settings),
        ],
        why=_why(rows, groups, settings),
        reproduced_values=_reproduced_values(experiment.paper_values, line, rows),
        findings=findings,
        agrees=verdict(findings),
        conclusion=(
            f"Relative flatness of the head has a Pearson correlation of {judged[PEARSON]} "
            f"({judged[LOGARITHM]} with its logarithm) and a Spearman correlation of "
            f"{judged[SPEARMAN]} with the gap over {line.n} networks."
        ),
    )


def _parts(experiment: Experiment, judged: Mapping[str, Judged]) -> list[Finding]:
    """Pearson's with its logarithm beside it, since tails are heavy; and ranks."""
    correlations = {
        name: above(
            name, found, paper=experiment.paper_values.get(name), comparable=experiment.comparable
        )
        for name, found in judged.items()
    }
    rises = "flatness of the head rises with the gap"
    ranks = dataclasses.replace(correlations[SPEARMAN], part=f"{rises} ({SPEARMAN})")
    both = [correlations[name] for name in (PEARSON, LOGARITHM)]
    return [agreeing(f"{rises} ({PEARSON})", both), ranks]


def _reproduced_values(
    names: Iterable[str], line: Regression, rows: Sequence[Row]
) -> dict[str, IntervalEstimate]:
    """The rows of the paper's table, of the gap of the losses."""
    # The error of the intercept is that of the slope times the root mean square of flatness.
    reach = math.sqrt(mean(row[HEAD] ** 2 for row in finite_rows(rows, HEAD)).value)
    numbers = [
        estimate(line.pearson),
        *(_alone(end, line.n) for end in (line.pearson.low, line.pearson.high)),
        estimate(line.spearman),
        _student(line.slope, line.slope_stderr, line.n),
        _alone(line.slope_stderr, line.n),
        _student(line.intercept, line.slope_stderr * reach, line.n),
        squared(line.pearson),
        *(_alone(p, line.n) for p in (line.p_slope, line.spearman.p)),
    ]
    return dict(zip(names, numbers, strict=True))


def _student(value: float, stderr: float, n: int) -> IntervalEstimate:
    """A coefficient of a line, which takes two degrees of freedom."""
    half = t_quantile(0.5 + CONFIDENCE / 2, n - 2) * stderr if n > 2 else math.nan
    return IntervalEstimate(value, value - half, value + half, n)


def _alone(value: float, n: int) -> IntervalEstimate:
    """A number that has no interval of its own."""
    return IntervalEstimate(value, math.nan, math.nan, n)


def _groups(rows: Sequence[Row], by_rate: ByRate) -> dict[str, list[Row]]:
    """All runs by how they were trained; a variant that the study does not have keeps its name."""
    groups = {
        f"{optimizer} at rate {rate:g}": group for (optimizer, rate), group in by_rate.items()
    }
    named = {row["variant"] for group in by_rate.values() for row in group}
    others = grouped([row for row in rows if row["variant"] not in named], "variant")
    return groups | others


def _why(rows: Sequence[Row], groups: dict[str, list[Row]], settings: Sequence[str]) -> str:
    """Which training settings stand apart in the figure, and what is left without them."""
    left = partial_of(rows, HEAD, GAP, list(CONFOUNDERS), settings)
    return (
        f"{_apart(groups)}With {' and '.join(CONFOUNDERS.values())} held fixed, relative flatness "
        f"of the head and the gap have a rank correlation of {left} over all {left.n} networks."
        f"{on_three_levels(rows, HEAD, settings)}"
    )


def _apart(groups: dict[str, list[Row]]) -> str:
    """A text on the settings whose gap is furthest from the others; empty for fewer than three."""
    gaps = {name: column(finite_rows(group, HEAD), GAP) for name, group in groups.items()}
    medians = {name: statistics.median(group) for name, group in gaps.items() if group}
    if len(medians) < 3:
        return ""

    def others(name: str) -> list[float]:
        return [median for other, median in medians.items() if other != name]

    apart = max(medians, key=lambda name: abs(medians[name] - statistics.median(others(name))))
    rest = [row for name, group in groups.items() if name != apart for row in group]
    without = regression(column(rest, HEAD), column(rest, GAP))
    within = mean(
        spearman(column(group, HEAD), column(group, GAP)).value for group in groups.values()
    )
    return (
        f"Of the optimizers with their rates, {apart} has the median gap furthest from the "
        f"others': {plain(medians[apart])}, where theirs are {plain(min(others(apart)))} to "
        f"{plain(max(others(apart)))}. Without its networks, relative flatness of the head and the "
        f"gap have a Pearson correlation of {without.pearson} and a Spearman correlation of "
        f"{without.spearman} over {without.n} networks. Within one optimizer and rate, all "
        f"batch sizes and decays together, the rank correlation is {within} on average over "
        f"{within.n} of them. This was examined after "
        "the runs and is not judged. "
    )
