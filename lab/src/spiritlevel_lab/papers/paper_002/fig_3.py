"""Paper 002, Fig. 3: class separation, and the correlation of flatness with the gap."""

from __future__ import annotations

from collections.abc import Sequence

from ...claims.findings import (
    Agreement,
    Finding,
    Result,
    above,
    estimate,
    missed,
    unmoved,
)
from ...claims.rows import column, grouped
from ...claims.trained import NotAsked
from ...statistics import (
    Correlation,
    partial_correlation,
    pearson,
    spearman,
)
from ..experiment import (
    Cell,
    Experiment,
    Figure,
    Outcome,
    Row,
    Series,
    Table,
)
from ..scale_text import ScaleTexts

CLASSIFIER, SEPARATION = "task.classifier", "task.separation"
KAPPA, GAP = "relative.kappa", "gap"


def analyse(rows: Sequence[Row]) -> Outcome:
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


EXPERIMENT = Experiment(
    name="002-fig-3",
    title="class separation and the correlation of relative flatness with the gap",
    source="Fig. 3",
    claim=(
        "The further apart the classes lie in feature space, that is, the more constant the labels "
        "are around each sample, the more strongly relative flatness correlates with the "
        "generalization gap; where labels are not locally constant there is no correlation."
    ),
    analyse=analyse,
    trained=NotAsked("Linear classifiers are fitted to the end; the training loss is theirs."),
    columns=(CLASSIFIER, SEPARATION, "seed", KAPPA, "train_loss", GAP),
    rule=(
        "for both classifiers, the correlation rises with the separation (Spearman over the "
        "separations above 0, p < 0.05), its 95 % interval contains 0 at the smallest separation "
        "and lies above 0 at the largest. Partly, if it rises for at least one of them."
    ),
    set_up=(
        "Each data set: four Gaussian clouds in ten features, two clouds per class, drawn anew; "
        "500 training points; a linear classifier fitted to them; and in front of it a random "
        "four-layer network that is inverted to find the inputs. κ is that of the linear layer. "
        "The gap is the loss on 200,000 fresh points of the same clouds minus the loss on the 500."
    ),
    scaled_down=ScaleTexts(
        "002-fig-3",
        {
            "": (
                "Nothing is scaled down: {seeds} data sets of 500 points for each separation. "
                "The paper's appendix is not part of the text we have; the clouds and the ridge "
                "classifier with squared loss follow the authors' published code, and a "
                "logistic classifier was added. The random network consists of square "
                "orthogonal layers with leaky ReLUs, so that it can be inverted exactly. The "
                "separation is half the edge of the cube at whose corners the clouds lie; the "
                "paper speaks of an average correlation and does not say over what. It prints "
                "no numbers for this figure."
            ),
            "quick": (
                "{seeds} data sets for each of {grid.task.separation:count} separations instead "
                "of 100 for each of 8."
            ),
            "paper": "Nothing is scaled down: the same as without a preset.",
        },
    ),
    measures=(KAPPA,),
)
