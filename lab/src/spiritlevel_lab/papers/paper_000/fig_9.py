"""Paper 000, Fig. 9: flatness and gap under three augmentations, and where networks settle."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...claims.contrasts import groups_of
from ...claims.factors import factor_by_seed
from ...claims.findings import (
    above,
    estimate,
    every,
    verdict,
)
from ...claims.rows import column
from ...claims.trained import Trained
from ...statistics import pearson, spearman
from ..experiment import (
    Cell,
    Experiment,
    Outcome,
    Panels,
    Row,
    Table,
)
from . import table_6
from .flatness_panels import drawn, marks
from .optimizers import HEAD

GAP, WORDS = table_6.GAP, table_6.WORDS
ACTIVE = tuple(table_6.AUGMENTED)
MIXUP = "mixup"
LABEL = "gap of the accuracies"
RANKS = {way: table_6.PAPER[way][3] for way in ACTIVE}  # the paper's, of Table 6


def analyse(rows: Sequence[Row]) -> Outcome:
    """Within each augmentation, flatness against the gap; and mixup's flatness against others'."""
    groups = {way: drawn(group, GAP) for way, group in groups_of(rows, "variant", ACTIVE).items()}
    ranks = {way: spearman(column(g, HEAD), column(g, GAP)) for way, g in groups.items()}
    larger = {
        way: factor_by_seed(groups[way], groups.get(MIXUP, []), HEAD)
        for way in groups
        if way != MIXUP
    }
    table: list[list[Cell]] = [
        [
            *(WORDS[way], len(group)),
            estimate(pearson(column(group, HEAD), column(group, GAP))),
            estimate(pearson(column(group, HEAD), _logarithms(group))),
            estimate(ranks[way]),
            larger.get(way),
        ]
        for way, group in groups.items()
    ]
    findings = [
        every(
            "under each augmentation the gap rises with flatness (Spearman correlation)",
            [above(WORDS[way], rank, paper=RANKS[way]) for way, rank in ranks.items()],
        ),
        every(
            "mixup leads to larger flatness than the others (flatness over theirs)",
            [above(f"than {WORDS[way]}", ratio, 1.0) for way, ratio in larger.items()],
        ),
    ]
    return Outcome(
        table=Table(
            (
                *("augmentation", "n", "Pearson", "Pearson, logarithm of the gap", "Spearman"),
                "flatness with mixup over this",
            ),
            table,
        ),
        figure=_figure(groups) if groups else None,
        beside={f"Spearman, {WORDS[way]}": estimate(rank) for way, rank in ranks.items()},
        findings=findings,
        agrees=verdict(findings),
        conclusion=(
            "Flatness and the gap of the accuracies have a rank correlation of "
            + ", ".join(f"{rank} with {WORDS[w]} (n = {rank.n})" for w, rank in ranks.items())
            + "; flatness with mixup is "
            + " and ".join(f"{ratio} times that with {WORDS[w]}" for w, ratio in larger.items())
            + "."
        ),
    )


def _logarithms(group: Sequence[Row]) -> list[float | None]:
    return [math.log(row[GAP]) if row[GAP] > 0 else None for row in group]


def _figure(groups: dict[str, list[Row]]) -> Panels:
    return Panels(
        [
            panel
            for way, group in groups.items()
            for panel in (
                marks({WORDS[way]: group}, GAP, LABEL, WORDS[way]),
                marks(
                    {WORDS[way]: group},
                    GAP,
                    LABEL,
                    f"{WORDS[way]}, logarithm of the gap",
                    log_y=True,
                ),
                marks(
                    {WORDS[way]: group}, GAP, LABEL, f"{WORDS[way]}, joint density", density=True
                ),
            )
        ],
        columns=3,
    )


def _trained() -> Trained:
    asked = table_6.EXPERIMENT.trained
    assert isinstance(asked, Trained)
    return Trained(
        asked.limits,
        asked.why,
        needed=asked.needed,
        by=asked.by,
        asked=lambda row: row["variant"] in ACTIVE,
        of="the networks with an augmentation",
    )


EXPERIMENT = Experiment(
    name="000-fig-9",
    title="flatness and gap within each augmentation, and where networks settle",
    source="Fig. 9",
    claim=(
        "Under crops and flips, AutoAugment and mixup alike the gap rises with relative flatness "
        "of the head, and mixup moves networks to significantly larger flatness."
    ),
    analyse=analyse,
    trained=_trained(),
    columns=("outcome", "variant", "seed", "train_accuracy", "test_accuracy", GAP, HEAD),
    rule=(
        "under all three the 95 % interval of Spearman's correlation lies above 0, and flatness "
        "with mixup over that with each of the others (seed by seed) lies above 1 with its whole "
        "interval. Partly, if one of the two is so. Written down after the first runs, which were "
        "not trained."
    ),
    set_up=(
        "The networks of 000-table-6, but for those without augmentation, which the paper leaves "
        "out here as it says that they hardly differ. Each row is an augmentation: the gap over "
        "flatness, its logarithm over flatness, and contours of a kernel density of both (each "
        "in units of its standard deviation, Scott's bandwidth). The paper's numbers are those of "
        "its Table 6; with its 20 networks each a correlation of 0.7 has an interval from about "
        "0.35 to 0.88."
    ),
    scaled_down=table_6.EXPERIMENT.scaled_down,
    measures=(HEAD,),
    paper_values={f"Spearman, {WORDS[way]}": rank for way, rank in RANKS.items()},
    rows_of=table_6.EXPERIMENT.name,
)
