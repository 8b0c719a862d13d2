"""Paper 001, Fig. 9: noise on the inputs of a ResNet-18 in its first epoch, norms fixed."""

from __future__ import annotations

from collections.abc import Sequence

from ...claims.findings import (
    Agreement,
    Finding,
    below,
    missed,
    unmoved,
    verdict,
)
from ...claims.numbers import mean
from ...claims.rows import column, grouped
from ...claims.trained import Limit, Trained
from ..experiment import (
    Cell,
    Experiment,
    Figure,
    Outcome,
    Row,
    Table,
)
from ..scale_text import ScaleTexts
from .confounded_trends import ConfoundedTrend
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

LEARNED = ConfoundedTrend(NOISE, "the noise", "train_accuracy", "the training accuracy")


def analyse(rows: Sequence[Row]) -> Outcome:
    """Rank correlations of the noise with trace, Jacobian norm and 1 − ‖p‖² over runs."""
    table: list[list[Cell]] = [
        [noise, len(group), *(mean(column(group, name)) for name in (*ACCURACIES, *MEASURES))]
        for noise, group in grouped(rows, NOISE).items()
    ]
    trends = {name: with_noise(rows, name) for name in MEASURES}
    certain = trends[GINI]
    findings = [
        below("the trace falls as the noise grows", trends[TRACE]),
        below("the Jacobian norm falls as the noise grows", trends[JACOBIAN]),
        unmoved("1 − ‖p‖² does not move with the noise", certain),
    ]
    return Outcome(
        table=Table(("noise", "n", *ACCURACIES, *MEASURES), table),
        figure=Figure(
            "standard deviation of the noise",
            "divided by the value without noise",
            [noise_line(name, rows, name) for name in MEASURES],
        ),
        findings=findings,
        agrees=_agreement(findings),
        why=LEARNED.why(rows, TRACE, "the trace"),
        more=[LEARNED.section(rows, MEASURES)],
        conclusion=(
            f"As the noise grows, the trace after one epoch {trend_in_words(trends[TRACE])}, the "
            f"Jacobian norm {trend_in_words(trends[JACOBIAN])} and 1 − ‖p‖² "
            f"{trend_in_words(certain)}, n = {certain.n}; the training accuracy "
            f"{trend_in_words(with_noise(rows, 'train_accuracy'))}."
        ),
    )


def _agreement(findings: Sequence[Finding]) -> Agreement:
    """A Jacobian norm that falls does not count unless the trace falls."""
    if findings[0].result == "held":
        return verdict(findings)
    return missed(findings)


EXPERIMENT = Experiment(
    name="001-fig-9",
    title="noise on the inputs of a ResNet-18",
    source="Fig. 9 (a)",
    claim=(
        "With norms held fixed, more Gaussian noise on the inputs of a ResNet-18 lowers its "
        "Hessian trace and its Jacobian norm after just one epoch, while 1 − ‖p‖² hardly changes."
    ),
    analyse=analyse,
    trained=Trained(
        (Limit("train_accuracy", at_least=0.2),),
        "That is twice as often right as a guess after the one epoch that the claim is about; what "
        "noise takes away can only be seen where something was learned without it.",
        asked=lambda row: row[NOISE] == 0,
        of="the networks without noise",
    ),
    columns=(NOISE, "seed", "outcome", *ACCURACIES, *MEASURES),
    rule=(
        "of the rank correlations with the noise over runs, the 95 % intervals for the trace and "
        "the Jacobian norm lie below 0, and that for 1 − ‖p‖² around 0. Partly, if the trace falls "
        "but one of the others is not as claimed; if it does not fall, not."
    ),
    set_up=(
        "ResNet-18 with its BatchNorm layers replaced by a normalization of each sample and "
        "weights of mean 0 and variance 2/n_in after each step; one epoch of SGD with momentum "
        "0.9, noise on every batch; images have pixels from 0 to 1. Measured without noise. After "
        "one epoch the network is not at a minimum: the Hessian has negative eigenvalues, and its "
        "trace can be negative. This is Fig. 9 (a). Fig. 9 (b), a ResNet-50 on a part of ImageNet, "
        "was not tested at any scale: ImageNet cannot be downloaded freely, and the paper does not "
        "say which part it used. So nothing here speaks for or against its claim that there the "
        "Jacobian norm and 1 − ‖p‖² change along with the trace. 001-fig-6 covers Fig. 9 (c), with "
        "a small vision transformer. Only the preset paper uses the paper's data for (a), "
        "CIFAR-100; the others use CIFAR-10, with ten classes instead of a hundred."
    ),
    scaled_down=ScaleTexts(
        "001-fig-9",
        {
            "": (
                "{data.samples} training images of CIFAR-10 instead of 50,000 of CIFAR-100 in "
                "batches of {training.batch_size}, a width of {model.width} instead of 64, a "
                "learning rate of {training.lr} instead of 0.001 because there are fewer steps, "
                "measured on {measure_options.samples} of the training images with at most "
                "{measure_options.max_passes} probes for the part of the trace that is not "
                "Gauss-Newton; {seeds} seeds."
            ),
            "quick": (
                "{data.samples} images, {grid.interventions.input_noise:count} noise levels, "
                "{seeds} seed: a trial."
            ),
            "h200": (
                "{data.samples} training images of CIFAR-10 instead of 50,000 of CIFAR-100, "
                "measured on {measure_options.samples} of them; {seeds} seeds."
            ),
            "paper": (
                "Measured on {measure_options.samples} of the training images; {seeds} seeds."
            ),
        },
    ),
    measures=MEASURES,
)
