"""Paper 001, Table 2: several steps on each batch; sharper at first, flatter in the end."""

from __future__ import annotations

from collections.abc import Sequence

from ...claims import post_hoc as afterwards
from ...claims.contrasts import group_points, group_table, groups_of
from ...claims.findings import (
    above,
    below,
    unmoved,
    verdict,
)
from ...claims.numbers import mean, plain
from ...claims.rows import column
from ...claims.trained import Limit, Trained
from ..experiment import (
    Experiment,
    Outcome,
    Row,
    Table,
)
from ..scale_text import ScaleTexts
from .accuracy_reached import how_many, with_reached
from .batch_cycles import (
    GINI,
    TRACE,
    follow,
    trend_in_words,
)
from .confounded_trends import ConfoundedTrend

VARIANT, STEPS = "variant", "steps on a batch"
LARGEST = "curvature.lambda_max"
FIRST = {"R = 5, one epoch": 5, "R = 10, one epoch": 10, "R = 20, one epoch": 20}
TRAINED = {"R = 1": 1, "R = 5": 5, "R = 10": 10}
AUGMENTED = "R = 1, augmented"
ACCURACIES = ("train_accuracy", "test_accuracy")
MEASURES = (TRACE, "curvature.ggn_trace", LARGEST, GINI)
PAPER = {  # training and test accuracy in %, Tr(H), largest eigenvalue, 1 − ‖p‖²
    "R = 5, one epoch": (54.10, 52.14, 500.1708, 29.0367, 0.774225),
    "R = 10, one epoch": (55.01, 45.21, 1017.1961, 60.6709, 0.766617),
    "R = 20, one epoch": (45.89, 44.79, 2370.0525, 137.2921, 0.775230),
    "R = 1": (88.55, 67.98, 2026.9998, 63.0798, 0.659916),
    AUGMENTED: (89.68, 83.42, 719.5708, 38.0442, 0.555853),
    "R = 5": (89.89, 77.03, 695.0275, 19.6098, 0.604527),
    "R = 10": (91.83, 77.03, 570.7282, 22.3277, 0.562706),
}
COLUMNS = (*ACCURACIES, TRACE, LARGEST, GINI)
FITTED = ConfoundedTrend(STEPS, "R", "train_accuracy", "the training accuracy")


def analyse(rows: Sequence[Row]) -> Outcome:
    """Rank correlations of R with trace and 1 − ‖p‖²: after one epoch, and trained."""
    groups = groups_of(rows, VARIANT, tuple(PAPER))
    early = _with_steps(rows, FIRST)
    late = _with_steps(rows, TRAINED)
    at_first, trained, certain = (
        follow(early, TRACE, STEPS),
        follow(late, TRACE, STEPS),
        follow(late, GINI, STEPS),
    )
    findings = [
        above("the trace after one epoch rises with R", at_first),
        below("the trace of trained networks falls with R", trained),
        below("1 − ‖p‖² of trained networks falls with R", certain),
    ]
    certain_at_first = follow(early, GINI, STEPS)
    added = [unmoved("1 − ‖p‖² after one epoch does not change with R", certain_at_first)]
    return Outcome(
        table=with_reached(
            group_table("training", groups, (*ACCURACIES, "epoch", *MEASURES)), groups, FIRST
        ),
        figure=group_points(
            groups, TRACE, "test_accuracy", "trace of the Hessian", "test accuracy"
        ),
        beside={
            f"{name}, {group}": mean(column(group_rows, name))
            for group, group_rows in groups.items()
            for name in COLUMNS
        },
        findings=[*findings, *added],
        agrees=afterwards.with_added(verdict(findings), added),
        more=[_at_one_accuracy(late)],
        conclusion=(
            f"With more steps R on each batch the trace after one epoch {trend_in_words(at_first)} "
            f"and 1 − ‖p‖² {trend_in_words(certain_at_first)}; trained to the same training "
            f"accuracy or beyond the trace {trend_in_words(trained)} and 1 − ‖p‖² "
            f"{trend_in_words(certain)}."
        ),
    )


def _at_one_accuracy(late: Sequence[Row]) -> Table:
    """Training ends with a whole epoch, so it passes the target accuracy, more or less far."""
    ends = ", ".join(
        f"{plain(mean(column(group, 'train_accuracy')).value, 3)} with {name} "
        f"({how_many(group)} of {len(group)} reached it)"
        for name, group in groups_of(late, VARIANT, tuple(TRAINED)).items()
    )
    return FITTED.section(
        late,
        (TRACE, GINI),
        "Training ends with the epoch in which the target training accuracy is reached, and may "
        f"pass it. On average it ended at {ends}.",
    )


def _with_steps(rows: Sequence[Row], steps: dict[str, int]) -> list[Row]:
    return [{**row, STEPS: steps[row[VARIANT]]} for row in rows if row[VARIANT] in steps]


def _paper_values() -> dict[str, float]:
    values_by_name = {}
    for group, (train, test, *values) in PAPER.items():
        for name, value in zip(COLUMNS, (train / 100, test / 100, *values), strict=True):
            values_by_name[f"{name}, {group}"] = value
    return values_by_name


EXPERIMENT = Experiment(
    name="001-table-2",
    title="several steps on each batch",
    source="Table 2",
    claim=(
        "With norms held fixed, more steps R on each batch make a network sharper after the first "
        "epoch while 1 − ‖p‖² stays the same, but flatter once it is trained, because its outputs "
        "come closer to one-hot."
    ),
    analyse=analyse,
    trained=Trained(
        (Limit("outcome", reached=("train_accuracy",)),),
        "The claim compares networks after one epoch, and networks of the same training accuracy.",
        by=VARIANT,
        asked=lambda row: row[VARIANT] in TRAINED,
        of="the networks that are judged as trained",
    ),
    columns=(VARIANT, "seed", "outcome", "epoch", *ACCURACIES, *MEASURES),
    rule=(
        "the 95 % intervals of three rank correlations with R over runs: with the trace after one "
        "epoch above 0; with the trace, and with 1 − ‖p‖², of trained networks below 0. "
        "Partly, if some do. One more part is judged: the interval of the rank correlation with "
        f"1 − ‖p‖² after one epoch is around 0. {afterwards.HOW}"
    ),
    set_up=(
        "VGG-small with every sample's activations normalized in front of each ReLU and weights of "
        "mean 0 and variance 2/n_in after each step; SGD with learning rate 0.01 and momentum 0.9. "
        "A trained network is one at the end of the epoch in which it reaches or passes a training "
        "accuracy that is the same for all, or at the last epoch. The share of shuffled labels N "
        "is 0 in all rows of the paper, and here. Away from a minimum the Hessian has negative "
        "eigenvalues, so its trace can be negative."
    ),
    scaled_down=ScaleTexts(
        "001-table-2",
        {
            "": (
                "{data.samples} training images of CIFAR-10 instead of 50,000 in batches of "
                "{training.batch_size}, a width of {model.width} instead of 64, trained to "
                "{stop.train_accuracy:%} instead of about 90 %, measured on "
                "{measure_options.samples} of the training images with at most "
                "{measure_options.max_passes} probes for the part of the trace that is not "
                "Gauss-Newton; {seeds} seeds instead of one."
            ),
            "quick": (
                "{data.samples} images, at most {training.epochs} epochs, {seeds} seed: a trial."
            ),
            "h200": (
                "{data.samples} training images instead of 50,000, measured on "
                "{measure_options.samples} of them; {seeds} seeds instead of one."
            ),
            "paper": (
                "Measured on {measure_options.samples} of the training images; {seeds} seeds "
                "instead of one."
            ),
        },
    ),
    measures=MEASURES,
    paper_values=_paper_values(),
    paper_runs=7,
)
