"""Paper 000, Table 3 and Fig. 3 (a): flatness of the head and the gap over 84 ResNet-18."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

from ...content import Table
from ...math.student import t_quantile
from ...study.statistics import Correlation, Regression, regression, spearman
from ..judging.contrasts import group_points
from ..judging.experiment import Experiment, Outcome, Row, titled
from ..judging.findings import above, estimate, verdict
from ..judging.numbers import CONFIDENCE, IntervalEstimate, mean, plain
from ..judging.population import (
    CONFOUNDERS,
    FEW,
    GAP,
    correlations,
    finite_rows,
    measured,
    on_three_levels,
    squared,
    whole_catalogue,
)
from ..judging.rows import column, grouped
from ..judging.settings import (
    levels_of,
    levels_tables,
    over_settings,
    partial_over_settings,
)
from .optimizers_and_rates import HEAD, ByRate, by_optimizer_and_rate

ERROR_GAP, ACCURACY = "error_gap", "train_accuracy"
FITTED = 0.99  # training accuracy from which on a network has little left to learn
OTHERS = ("head.trace", "curvature.trace", "relative.kappa", "norms.weight")
PEARSON, SPEARMAN = "Pearson correlation", "Spearman correlation"


def analyse(experiment: Experiment, rows: Sequence[Row]) -> Outcome:
    """Both correlations of the head's relative flatness with the gap, beside the paper's."""
    settings = experiment.settings
    shown = measured(rows, (HEAD, *OTHERS))
    table, _ = correlations(rows, shown, settings)
    line = regression(column(rows, HEAD), column(rows, GAP))
    judged = _over_settings(rows, line, settings)
    groups = _groups(rows, by_optimizer_and_rate(rows))
    findings = [
        above(
            f"flatness of the head rises with the gap ({name})",
            correlation,
            paper=experiment.paper_values[name],
        )
        for name, correlation in judged.items()
    ]
    return Outcome(
        table=table,
        figure=group_points(
            {name: drawn for name, group in groups.items() if (drawn := finite_rows(group, HEAD))},
            *(HEAD, GAP, HEAD, "generalization gap"),
            fitted=True,
        ),
        more=[
            *levels_tables(rows, shown, settings),
            *_by_accuracies(rows, shown, settings),
            whole_catalogue(rows, settings),
        ],
        why=_why(rows, groups, settings),
        reproduced_values=_reproduced_values(experiment.paper_values, line, rows),
        findings=findings,
        agrees=verdict(findings),
        conclusion=(
            f"Relative flatness of the head has a Pearson correlation of {judged[PEARSON]} and a "
            f"Spearman correlation of {judged[SPEARMAN]} with the gap over {line.n} networks."
        ),
    )


def _over_settings(
    rows: Sequence[Row], line: Regression, settings: Sequence[str]
) -> dict[str, Correlation]:
    """Both correlations of a line through these runs, with intervals that count settings."""
    return {
        PEARSON: over_settings(line.pearson, levels_of(rows, HEAD, GAP, settings, "pearson")),
        SPEARMAN: over_settings(line.spearman, levels_of(rows, HEAD, GAP, settings)),
    }


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


def _by_accuracies(
    rows: Sequence[Row], shown: Sequence[str], settings: Sequence[str]
) -> list[Table]:
    """The results for the other gap that the paper may have meant, if it was recorded."""
    others = [{**row, GAP: row[ERROR_GAP]} for row in rows if row.get(ERROR_GAP) is not None]
    if not others:
        return []
    table, _ = correlations(others, shown, settings)
    line = regression(column(others, HEAD), column(others, GAP))
    return [
        titled(
            "Against the gap of the accuracies",
            "The paper defines its gap by losses, which is what is judged above. Its intercept, "
            "however, is about as large as the gaps of its four best networks, and those are gaps "
            "of accuracies by their numbers: it may have used them here too. Then a line through "
            f"relative flatness of the head has a slope of {plain(line.slope)}, an intercept of "
            f"{plain(line.intercept)} and an R² of {plain(line.r_squared)} over {line.n} networks. "
            "Shown, not judged.",
            table,
        )
    ]


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
    left = partial_over_settings(rows, HEAD, GAP, list(CONFOUNDERS), settings)
    return (
        f"{_apart(groups)}With {' and '.join(CONFOUNDERS.values())} held fixed, relative flatness "
        f"of the head and the gap have a rank correlation of {left} over all {left.n} networks."
        f"{_of_the_fitted(rows, settings)}{on_three_levels(rows, HEAD, settings)}"
    )


def _of_the_fitted(rows: Sequence[Row], settings: Sequence[str]) -> str:
    """What is left without networks that still learn; empty if none do, or too many."""
    fitted = [row for row in finite_rows(rows, HEAD) if (row.get(ACCURACY) or 0.0) > FITTED]
    if not FEW <= len(fitted) < len(rows):
        return ""
    left = _over_settings(fitted, regression(column(fitted, HEAD), column(fitted, GAP)), settings)
    return (
        f" Over the {len(fitted)} networks with a training accuracy above {FITTED:g}, Pearson's "
        f"correlation is {left[PEARSON]} and Spearman's {left[SPEARMAN]}; this too was examined "
        "afterwards."
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
