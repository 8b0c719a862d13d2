"""Paper 000, Table 4 and Fig. 5: flatness of the head while a network is trained."""

from __future__ import annotations

from collections.abc import Sequence

from spiritlevel.records.content import Cell, Figure, Table

from ...claims.contrasts import factor, line
from ...claims.experiment import Experiment, Outcome, Row
from ...claims.findings import below, verdict
from ...claims.numbers import IntervalEstimate, mean
from ...claims.rows import column, grouped
from .tasks_dynamics import ACCURACY, FIRST, FLATNESS, MIRRORED, SHARES, distinct_shares

VARIANTS = ("slow", "fast")
LAST = f"{FLATNESS}/100"
SHOWN = ("test_accuracy", "error_gap", "head.kappa")
NAMES = ("test accuracy", "gap of the accuracies", "relative flatness of the head")


def analyse(experiment: Experiment, rows: Sequence[Row]) -> Outcome:
    """Does flatness fall from the first epoch to the last, and against the accuracy?"""
    by_variant = grouped(rows, "variant")
    groups = {each: by_variant[each] for each in VARIANTS if each in by_variant}
    shares = distinct_shares(rows, FLATNESS)
    table: list[list[Cell]] = [
        [
            variant,
            len(group),
            *(mean(column(group, name)) for name in SHOWN),
            *(mean(column(group, f"{FLATNESS}/{share}")) for share in shares),
            _fall(group),
            mean(column(group, MIRRORED)),
        ]
        for variant, group in groups.items()
    ]
    fall, mirror = _fall(rows), mean(column(rows, MIRRORED))
    findings = [
        below("flatness is lower after the last epoch than after the first (ratio)", fall, 1.0),
        below(
            "over the epochs, accuracy mirrors flatness: their rank correlation is negative", mirror
        ),
    ]
    return Outcome(
        table=Table(
            (
                *("variant", "n", *NAMES),
                *(f"flatness after {share} % of the epochs" for share in shares),
                "last over first epoch",
                "rank correlation with test accuracy over epochs",
            ),
            table,
        ),
        figure=Figure(
            "% of the epochs",
            "relative flatness of the head",
            [
                line(variant, shares, [mean(column(group, f"{FLATNESS}/{s}")) for s in shares])
                for variant, group in groups.items()
            ],
        ),
        reproduced_values={
            f"{name}, {variant}": mean(column(group, key))
            for variant, group in groups.items()
            for name, key in zip(NAMES, SHOWN, strict=True)
        },
        why=_why(rows),
        findings=findings,
        agrees=verdict(findings),
        conclusion=(
            "From the first epoch to the last the head's relative flatness is multiplied by "
            f"{fall} (n = {fall.n}), and over the epochs of a network it has a rank correlation of "
            f"{mirror} with the test accuracy."
        ),
    )


def _why(rows: Sequence[Row]) -> str:
    """When in training flatness is largest, and how the accuracy changes before and after."""
    names = [f"{name}/{share}" for name in (FLATNESS, ACCURACY) for share in SHARES]
    complete = [row for row in rows if all(row.get(name) is not None for name in names)]
    if not complete:
        return ""
    peaks = [max(SHARES, key=lambda share: row[f"{FLATNESS}/{share}"]) for row in complete]
    flatness, accuracy = (
        [
            [row[f"{name}/{s}"] for s in (0, peak, 100)]
            for row, peak in zip(complete, peaks, strict=True)
        ]
        for name in (FLATNESS, ACCURACY)
    )
    alike = sum(a[0] < a[1] and f[0] < f[1] for f, a in zip(flatness, accuracy, strict=True))
    mirror = sum(a[1] < a[2] and f[1] > f[2] for f, a in zip(flatness, accuracy, strict=True))
    return (
        f"At the times of the table, flatness is largest after {mean(map(float, peaks))} % of the "
        f"epochs: it is {_on_the_way(flatness)}; the test accuracy is {_on_the_way(accuracy)}. "
        f"From the start to that time both rise in {alike} of {len(complete)} runs; from then to "
        f"the end flatness falls while the accuracy rises in {mirror}."
    )


def _on_the_way(looks: Sequence[Sequence[float]]) -> str:
    start, peak, end = (mean(each) for each in zip(*looks, strict=True))
    return f"{start} before training, {peak} at that time and {end} at the end"


def _fall(rows: Sequence[Row]) -> IntervalEstimate:
    return factor((row[FIRST], row[LAST]) for row in rows)
