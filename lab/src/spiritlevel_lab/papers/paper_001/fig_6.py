"""Paper 001, Fig. 6: noise on the inputs of a ViT in its first epoch, norms free and fixed."""

from __future__ import annotations

from collections.abc import Sequence

from ...claims import post_hoc as afterwards
from ...claims.contrasts import difference
from ...claims.findings import (
    Finding,
    below,
    unmoved,
    verdict,
)
from ...claims.numbers import mean
from ...claims.rows import column, grouped
from ...claims.trained import Limit, Trained
from ...statistics import spearman
from ..experiment import (
    Cell,
    Experiment,
    Figure,
    Outcome,
    Row,
    Table,
)
from ..scale_text import ScaleTexts
from .noise_injection import (
    ACCURACIES,
    GINI,
    JACOBIAN,
    MEASURES,
    NOISE,
    TRACE,
    noise_line,
    trend_in_words,
    with_noise,
)

FIXED = "norm_control"
LIMIT = 0.3  # variance of the noise beyond which the paper's network does not train
GUESSING = 0.1  # the accuracy of a guess among ten classes
TITLES = {False: "standard", True: "norms fixed"}


def analyse(rows: Sequence[Row]) -> Outcome:
    """Rank correlation of the noise with the trace, with norms free and fixed."""
    table: list[list[Cell]] = []
    groups = {fixed: [row for row in rows if row[FIXED] == fixed] for fixed in TITLES}
    for fixed, group in groups.items():
        for noise, part in grouped(group, NOISE).items():
            means = [mean(column(part, name)) for name in (*ACCURACIES, *MEASURES)]
            table.append([TITLES[fixed], noise, len(part), *means])
    free, controlled = (with_noise(groups[fixed], TRACE) for fixed in (False, True))
    certain = with_noise(groups[True], GINI)
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
            [noise_line(TITLES[fixed], group, TRACE) for fixed, group in groups.items()],
        ),
        findings=[*findings, *added],
        agrees=afterwards.with_added(verdict(findings), added),
        conclusion=(
            f"As the noise grows, the trace after one epoch {trend_in_words(controlled)} with "
            f"norms held fixed and {trend_in_words(free)} in the standard network, n = "
            f"{controlled.n} each; 1 − ‖p‖² with norms held fixed {trend_in_words(certain)}."
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


EXPERIMENT = Experiment(
    name="001-fig-6",
    title="noise on the inputs of a vision transformer",
    source="Fig. 6, and Fig. 9 (c)",
    claim=(
        "With norms held fixed, the more Gaussian noise is put on the inputs of a vision "
        "transformer, the smaller its Hessian trace is after just one epoch; in the standard "
        "network there is no clear trend. Beyond a variance of 0.3 it cannot be trained and is "
        "even flatter. How its trace relates to the Jacobian norm and to 1 − ‖p‖² is not clear."
    ),
    analyse=analyse,
    trained=Trained(
        (Limit("train_accuracy", at_least=2 * GUESSING),),
        "That is twice as often right as a guess after the one epoch that the claim is about; what "
        "noise takes away can only be seen where something was learned without it.",
        by=FIXED,
        asked=lambda row: row[NOISE] == 0,
        of="the networks without noise",
    ),
    columns=(FIXED, NOISE, "seed", "outcome", *ACCURACIES, *MEASURES),
    rule=(
        "of the rank correlations of noise and trace over runs, the 95 % interval lies below 0 "
        "with norms held fixed, and around 0 in the standard network. Partly, if only the first is "
        "true: an interval around 0 shows too little on its own. Four more parts are judged: with "
        "fixed norms and the strongest noise, if its variance is beyond 0.3, the interval of the "
        "training accuracy is around that of guessing, and the trace is lower than with the "
        "strongest noise below that variance, with the whole interval of the difference paired by "
        "seed; and the rank correlations over runs of the trace with the Jacobian norm and with "
        f"1 − ‖p‖² have intervals around 0. {afterwards.HOW}"
    ),
    set_up=(
        "A small vision transformer, one epoch of SGD with momentum 0.9, noise on every batch; "
        "images have pixels from 0 to 1. With fixed norms its LayerNorms are replaced by a "
        "normalization of each sample without learned scales, and weights have mean 0 and variance "
        "2/n_in after each step. Measured without noise. The strength of noise is its standard "
        "deviation here. The paper's Fig. 6 uses the variance, its Fig. 9 (c) the "
        "standard deviation: a variance of 0.3 is a standard deviation of 0.55. The paper does not "
        "say how its inputs are scaled."
    ),
    scaled_down=ScaleTexts(
        "001-fig-6",
        {
            "": (
                "CIFAR-10 instead of a part of ImageNet, {data.samples} training images in "
                "batches of {training.batch_size}, a transformer of width {model.width} and "
                "depth {model.depth} instead of ViT-Base, measured on {measure_options.samples} "
                "of the training images with at most {measure_options.max_passes} probes for "
                "the part of the trace that is not Gauss-Newton; a learning rate of "
                "{training.lr} instead of 0.0001, which would hardly change the weights in so "
                "few steps; {seeds} seeds."
            ),
            "quick": (
                "{data.samples} images, {grid.interventions.input_noise:count} noise levels, "
                "{seeds} seed: a trial."
            ),
            "one-core": (
                "CIFAR-10 instead of a part of ImageNet, all of its training images in batches of "
                "{training.batch_size}, a transformer of width {model.width} and depth "
                "{model.depth} instead of ViT-Base, a learning rate of {training.lr} instead of "
                "0.0001, measured on {measure_options.samples} of the training images with at most "
                "{measure_options.max_passes} probes for the part of the trace that is not "
                "Gauss-Newton; {seeds} seeds."
            ),
            "h200": (
                "CIFAR-10 instead of a part of ImageNet, {data.samples} training images, a "
                "transformer of width {model.width} and depth {model.depth} instead of "
                "ViT-Base, a learning rate of {training.lr} instead of 0.0001, measured on "
                "{measure_options.samples} of the training images; {seeds} seeds."
            ),
            "paper": (
                "CIFAR-10 instead of a part of ImageNet, which cannot be downloaded freely, and "
                "a transformer of width {model.width} and depth {model.depth} for its small "
                "images; measured on {measure_options.samples} of the training images; {seeds} "
                "seeds."
            ),
        },
    ),
    measures=MEASURES,
)
