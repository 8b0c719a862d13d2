"""Paper 001, Fig. 6: noise on the inputs of a ViT in its first epoch, norms free and fixed."""

from __future__ import annotations

from collections.abc import Sequence

from ...pages.content import Cell, Figure, Series, Table
from ...study.statistics import Correlation, spearman
from ..judging.contrasts import difference, line
from ..judging.experiment import Experiment, Outcome, Row
from ..judging.findings import Finding, below, unmoved, verdict, with_added
from ..judging.numbers import mean
from ..judging.rows import column, grouped
from ..recipes.sentences import trend as in_words

NOISE = "interventions.input_noise"
TRACE, JACOBIAN, GINI = "curvature.trace", "sensitivity.jacobian", "softmax.gini"
ACCURACIES = ("train_accuracy", "test_accuracy")
MEASURES = (TRACE, JACOBIAN, GINI)
FIXED = "norm_control"
LIMIT = 0.3  # variance of the noise beyond which the paper's network does not train
GUESSING = 0.1  # the accuracy of a guess among ten classes
TITLES = {False: "standard", True: "norms fixed"}


def analyse(experiment: Experiment, rows: Sequence[Row]) -> Outcome:
    """Rank correlation of the noise with the trace, with norms free and fixed."""
    table: list[list[Cell]] = []
    groups = {fixed: [row for row in rows if row[FIXED] == fixed] for fixed in TITLES}
    for fixed, group in groups.items():
        for noise, part in grouped(group, NOISE).items():
            means = [mean(column(part, name)) for name in (*ACCURACIES, *MEASURES)]
            table.append([TITLES[fixed], noise, len(part), *means])
    free, controlled = (_with_noise(groups[fixed], TRACE) for fixed in (False, True))
    certain = _with_noise(groups[True], GINI)
    findings = [
        below("with fixed norms the trace falls as the noise grows", controlled),
        unmoved("in the standard network it does not move with the noise", free),
    ]
    added = [*_beyond_the_limit(groups[True]), *_beside_the_trace(groups[True])]
    return Outcome(
        table=Table(("network", "noise", "n", *ACCURACIES, *MEASURES), table),
        figure=Figure(
            "standard deviation of the noise",
            "trace, divided by that without noise",
            [_noise_line(TITLES[fixed], group, TRACE) for fixed, group in groups.items()],
        ),
        findings=[*findings, *added],
        agrees=with_added(verdict(findings), added),
        conclusion=(
            f"As the noise grows, the trace after one epoch {in_words(controlled)} with "
            f"norms held fixed and {in_words(free)} in the standard network, n = "
            f"{controlled.n} each; 1 − ‖p‖² with norms held fixed {in_words(certain)}."
        ),
    )


def _beyond_the_limit(rows: Sequence[Row]) -> list[Finding]:
    """The parts on strong noise; none if no noise is beyond the limit, or none below it."""
    groups = grouped(rows, NOISE)
    strong = [noise for noise in groups if noise**2 > LIMIT]
    weak = [noise for noise in groups if noise**2 <= LIMIT]
    if not strong or not weak:
        return []
    reached = [a for a in column(groups[max(strong)], "train_accuracy") if a is not None]
    flatter = difference(groups[max(strong)], groups[max(weak)], TRACE)
    strongest = f"with fixed norms and a noise of {max(strong):g}, a variance beyond {LIMIT:g},"
    return [
        unmoved(
            f"{strongest} nothing is learned: training accuracy minus the {GUESSING:g} of guessing",
            mean(accuracy - GUESSING for accuracy in reached),
        ),
        below(f"{strongest} the trace is even smaller than with {max(weak):g}", flatter),
    ]


def _beside_the_trace(rows: Sequence[Row]) -> list[Finding]:
    """The parts on Fig. 9 (c), over runs at all noise levels."""
    return [
        unmoved(
            f"with fixed norms trace and {title} are not clearly correlated, Fig. 9 (c)",
            spearman(column(rows, TRACE), column(rows, name)),
        )
        for title, name in (("Jacobian norm", JACOBIAN), ("1 − ‖p‖²", GINI))
    ]


def _with_noise(rows: Sequence[Row], name: str) -> Correlation:
    """How a number follows the noise, over runs."""
    return spearman(column(rows, NOISE), column(rows, name))


def _noise_line(title: str, rows: Sequence[Row], name: str) -> Series:
    """Means with intervals by noise, divided by the mean without noise."""
    means = {noise: mean(column(group, name)) for noise, group in grouped(rows, NOISE).items()}
    unit = next((each.value for each in means.values()), 1.0)
    return line(title, list(means), list(means.values()), unit)
