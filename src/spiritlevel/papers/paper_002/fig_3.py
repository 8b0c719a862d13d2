"""Paper 002, Fig. 3: class separation, and the correlation of flatness with the gap."""

from __future__ import annotations

from collections.abc import Sequence

from ...pages.content import Cell, Figure, Series, Table
from ...study.statistics import Correlation, partial_correlation, pearson, spearman
from ..judging.experiment import Experiment, Outcome, Row
from ..judging.findings import Agreement, Finding, Result, above, estimate, missed, unmoved
from ..judging.rows import column, grouped

CLASSIFIER, SEPARATION = "task.classifier", "task.separation"
KAPPA, GAP = "relative.kappa", "gap"


def analyse(experiment: Experiment, rows: Sequence[Row]) -> Outcome:
    """Correlations over data sets of one separation; three checks for each classifier."""
    table: list[list[Cell]] = []
    every: dict[str, dict[float, Correlation]] = {}
    ranks: dict[str, Correlation] = {}  # at the largest separation
    for classifier, of_one in grouped(rows, CLASSIFIER).items():
        every[classifier] = {}
        for separation, group in grouped(of_one, SEPARATION).items():
            kappa, gap = column(group, KAPPA), column(group, GAP)
            correlation = pearson(kappa, gap)
            partial = partial_correlation(kappa, gap, {"train_loss": column(group, "train_loss")})
            ranks[classifier] = spearman(kappa, gap)
            cells = (correlation, ranks[classifier], partial)
            table.append([classifier, separation, len(group), *map(estimate, cells)])
            every[classifier][separation] = correlation
    checks = [_checks(classifier, correlation) for classifier, correlation in every.items()]
    agrees = _agreement(checks)
    return Outcome(
        table=Table(
            (
                "classifier",
                "class separation",
                "n",
                "Pearson correlation of κ and gap",
                "Spearman",
                "Pearson, training loss held fixed",
            ),
            table,
        ),
        figure=Figure(
            "class separation",
            "correlation of κ and the generalization gap",
            [_line(classifier, correlation) for classifier, correlation in every.items()],
        ),
        findings=[finding for each in checks for finding in each],
        agrees=agrees,
        conclusion=_conclusion(every, ranks, agrees),
    )


def _line(name: str, by_separation: dict[float, Correlation]) -> Series:
    values = list(by_separation.values())
    return Series(
        name,
        list(by_separation),
        [c.value for c in values],
        [c.low for c in values],
        [c.high for c in values],
    )


def _checks(classifier: str, by_separation: dict[float, Correlation]) -> list[Finding]:
    trend = spearman(list(by_separation), [c.value for c in by_separation.values()])
    result: Result = "undecided"
    if trend.p < 0.05:
        result = "held" if trend.value > 0 else "not held"
    smallest, largest = min(by_separation), max(by_separation)
    return [
        Finding(f"{classifier}: it rises with the separation", result, estimate(trend)),
        unmoved(
            f"{classifier}: none at a separation of {smallest:g}",
            by_separation[smallest],
        ),
        above(
            f"{classifier}: it is above 0 at a separation of {largest:g}", by_separation[largest]
        ),
    ]


def _agreement(checks: list[list[Finding]]) -> Agreement:
    every = [finding for each in checks for finding in each]
    if all(finding.result in ("held", "not refuted") for finding in every):
        return "yes"
    return "partly" if any(rises.result == "held" for rises, *_ in checks) else missed(every)


def _conclusion(
    by_classifier: dict[str, dict[float, Correlation]],
    ranks: dict[str, Correlation],
    agrees: Agreement,
) -> str:
    verbs = {
        "yes": "rises",
        "partly": "partly rises",
        "no": "does not clearly rise",
        "undecided": "does not clearly rise or fall",
    }
    said = [
        f"with the {classifier} classifier it is {of_one[min(of_one)]} at a separation of "
        f"{min(of_one):g} and {of_one[max(of_one)]} (by ranks {ranks[classifier]}) at "
        f"{max(of_one):g}"
        for classifier, of_one in by_classifier.items()
    ]
    return f"The correlation {verbs[agrees]} with the class separation: {', '.join(said)}."
