"""Paper 000, Fig. 6: wrong labels, flatness of the head, and its correlation with the gap."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from ...claims.contrasts import line
from ...claims.findings import above, estimate, verdict
from ...claims.numbers import CONFIDENCE, IntervalEstimate, mean
from ...claims.population import (
    CONFOUNDERS,
    FEW,
    GAP,
    why,
)
from ...claims.rows import column, grouped
from ...claims.settings import levels_of, over_settings
from ...claims.trained import FIT, Limit, Trained
from ...statistics import Correlation, spearman
from ..experiment import (
    Cell,
    Experiment,
    Figure,
    Outcome,
    Row,
    Table,
    titled,
)
from ..scale_text import ScaleTexts

NOISE, HEAD, WAY = "interventions.label_noise", "head.kappa", "variant"
SETTINGS = (WAY, NOISE)
SHOWN = ("train_accuracy", "test_accuracy", GAP, HEAD)
ALMOST = 1.0 - 1e-9  # Fisher's z of a perfect correlation is infinite


def analyse(rows: Sequence[Row]) -> Outcome:
    """Does flatness rise with the noise, and does its correlation with the gap rise too?"""
    groups = grouped(rows, NOISE)
    ranks = {noise: spearman(column(g, HEAD), column(g, GAP)) for noise, g in groups.items()}
    table: list[list[Cell]] = [
        [noise, len(g), *(mean(column(g, name)) for name in SHOWN), estimate(ranks[noise])]
        for noise, g in groups.items()
    ]
    rise = over_settings(
        spearman(column(rows, NOISE), column(rows, HEAD)), levels_of(rows, HEAD, NOISE, SETTINGS)
    )
    stronger = strengthening(ranks[min(ranks)], ranks[max(ranks)])
    over_all = spearman(column(rows, HEAD), column(rows, GAP))
    findings = [
        above("relative flatness of the head rises with the share of wrong labels", rise),
        above(
            "flatness and gap correlate more strongly with the most wrong labels than with the "
            "fewest (difference in Fisher's z)",
            stronger,
        ),
    ]
    return Outcome(
        table=Table(("share of wrong labels", "n", *SHOWN, "Spearman, flatness and gap"), table),
        figure=Figure(
            "share of wrong labels",
            "relative flatness of the head",
            [line(HEAD, list(groups), [mean(column(g, HEAD)) for g in groups.values()])],
        ),
        more=_by_way(rows),
        why=_why(rows, groups) if len(rows) >= FEW else "",
        findings=findings,
        agrees=verdict(findings),
        conclusion=(
            f"With the share of wrong labels the head's relative flatness has a rank correlation "
            f"of {rise}; that of flatness with the gap is {ranks[min(ranks)]} without wrong labels "
            f"and {ranks[max(ranks)]} at {max(ranks):.0%} (difference in Fisher's z {stronger}) "
            f"and {over_all} over all {over_all.n} networks."
        ),
    )


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


EXPERIMENT = Experiment(
    name="000-fig-6",
    title="wrong labels and flatness of the head",
    source="Fig. 6",
    claim=(
        "The more labels are wrong, the larger relative flatness of the head becomes, and the "
        "more strongly it correlates with the generalization gap."
    ),
    analyse=analyse,
    trained=Trained(
        (Limit("train_accuracy", at_least=FIT),),
        "Wrong labels change a minimum only if they are fitted.",
        needed=FEW,
        by=NOISE,
    ),
    columns=("outcome", NOISE, "variant", "seed", *CONFOUNDERS, *SHOWN),
    rule=(
        "two 95 % intervals lie above 0: that of the rank correlation of noise with flatness (over "
        "settings), and that of the difference in Fisher's z between the correlations of flatness "
        "with the gap at the most noise and without noise. Partly, if one does. (At first the "
        "former interval was over networks; this was corrected after the runs, since networks of "
        "one setting are not independent, and changed no verdict.)"
    ),
    set_up=(
        "0, 10, 20 or 40 % of the training labels are replaced by another class: the paper "
        "corrupts labels at random and does not say whether some may stay right. Networks with the "
        "same share differ in training settings and seeds; rates and optimizers are our choice. "
        "Test images keep their right labels, so the wrong training labels are part of the gap. "
        "The figure's numbers are not in the text we have."
    ),
    scaled_down=ScaleTexts(
        "000-fig-6",
        {
            "": (
                "Handwritten digits of 8×8 pixels ({data.samples} images) instead of CIFAR-10, "
                "and a small convolutional network with the same kind of head instead of "
                "ResNet-18. Random initial weights, {training.epochs} epochs, learning rates of "
                "{variants.lr} with {seeds} seeds each, measured on {measure_options.samples} "
                "images."
            ),
            "quick": (
                "The same with {training.epochs} epochs, {grid.interventions.label_noise:%} of "
                "the labels wrong and {seeds} seeds each: a trial."
            ),
            "paper": (
                "Random initial weights, {variants:count} ways of training with {seeds} seeds "
                "each, {training.epochs} epochs, measured on {measure_options.samples} of the "
                "{data.samples} images. The paper says neither how its networks were trained "
                "nor how many there were."
            ),
            "h200": (
                "Random initial weights, {data.samples} images, {variants:count} ways of "
                "training with {seeds} seeds each, {training.epochs} epochs, measured on "
                "{measure_options.samples} images."
            ),
            "h200-trained": (
                "Random initial weights, {data.samples} images, {variants:count} ways of "
                "training with {seeds} seeds each, at most {training.epochs} epochs, to a "
                "training accuracy of {stop.train_accuracy}, measured on "
                "{measure_options.samples} images."
            ),
            "h200-narrow": (
                "Width {model.width} instead of 64, random initial weights, {data.samples} images, "
                "{variants:count} ways of training with {seeds} seeds each, at most "
                "{training.epochs} epochs, to a training accuracy of {stop.train_accuracy}, "
                "measured on {measure_options.samples} images."
            ),
        },
    ),
    measures=(HEAD,),
)
