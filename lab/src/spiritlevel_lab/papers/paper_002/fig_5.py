"""Paper 002, Fig. 5: 110 minima of LeNet-5, relative flatness against other measures."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...claims.findings import (
    above,
    fact,
    missed,
    verdict,
)
from ...claims.population import (
    CONFOUNDERS,
    FEW,
    REACHED,
    correlations,
    scatter,
    strongest,
    whole_catalogue,
    why,
)
from ...claims.post_hoc import HOW, with_added
from ...claims.settings import levels_tables
from ...claims.trained import Limit, Trained
from ...statistics import Correlation
from ..experiment import (
    Experiment,
    Outcome,
    Row,
    Table,
    titled,
)
from ..scale_text import ScaleTexts

KAPPA = "head.kappa"  # one layer, as in the paper, which does not say which one
SUM = "relative.kappa"  # of all layers
PAC_BAYES = "pac_bayes.sigma"  # 1/σ²: large is sharp, as with all others
FISHER_RAO = "norms.fisher_rao"
NORM = "norms.weight"
RIVALS = ("curvature.trace", FISHER_RAO, PAC_BAYES, NORM)
ADDED = (SUM, "curvature.lambda_max")  # not in the paper
SETTINGS = ("variant", "batch_size", "weight_decay")
MEASURES = (KAPPA, *RIVALS, *ADDED)


BOUND = "‖θ‖²/(4σ²) + ln(n/σ) + 10"
AUTHORS_BOUND = "the same with √σ for σ"


def analyse(rows: Sequence[Row]) -> Outcome:
    """Relative flatness must correlate with the gap, and more than the paper's other measures."""
    table, ranks = correlations(rows, (KAPPA, *RIVALS, *ADDED), SETTINGS)
    authors, authors_rank = _as_the_authors(rows)
    judged = {name: ranks[name] for name in (KAPPA, *RIVALS)}
    best, last = strongest(judged), min(judged, key=lambda name: judged[name].value)
    correlates = above("relative flatness correlates with the gap", ranks[KAPPA])
    findings = [
        correlates,
        fact("more strongly than every other measure", best == KAPPA, f"the first is {best}"),
    ]
    agrees = verdict(findings) if correlates.result == "held" else missed(findings)
    added = [
        fact(
            "the Fisher–Rao norm has the lowest correlation, signs counted",
            last == FISHER_RAO,
            f"{last} has",
        )
    ]
    return Outcome(
        table=table,
        figure=scatter(rows, KAPPA, SETTINGS),
        why=(
            f"{why(rows, KAPPA, settings=SETTINGS)} The PAC-Bayes measure as the authors' code "
            f"computes it has a rank correlation of {authors_rank} with the gap; this was examined "
            "after the runs and is not judged."
        ),
        findings=[*findings, *added],
        agrees=with_added(agrees, added),
        more=[
            *levels_tables(rows, (KAPPA, *RIVALS, *ADDED), SETTINGS),
            authors,
            whole_catalogue(rows, SETTINGS),
        ],
        conclusion=(
            f"Over {len(rows)} minima the rank correlation of relative flatness (of the last "
            f"layer) with the gap is {ranks[KAPPA]}, that of its sum over layers {ranks[SUM]}; the "
            f"strongest of the five compared is {best} with {ranks[best]}, and the Fisher–Rao norm "
            f"has {ranks[FISHER_RAO]}."
        ),
    )


def _as_the_authors(rows: Sequence[Row]) -> tuple[Table, Correlation]:
    """Their PAC-Bayes measure, from the columns that it is made of, and its rank correlation."""
    with_bounds = [{**row, **_bounds(row)} for row in rows]
    table, ranks = correlations(with_bounds, (BOUND, AUTHORS_BOUND), SETTINGS)
    shown = titled(
        "The PAC-Bayes measure of the authors' code",
        "For its Fig. 5 the published code draws not 1/σ², but a bound made of it and of the norm "
        "of the weights; and since it takes noise of standard deviation σ², its σ is the root of "
        "the one here. Computed from pac_bayes.sigma and norms.weight (with the biases, which that "
        "code leaves out); n is the same for all networks. Shown, not judged.",
        table,
    )
    return shown, ranks[AUTHORS_BOUND]


def _bounds(row: Row) -> dict[str, float]:
    """As both say, without ln n; nan where the run has no number."""
    flatness, norm = row.get(PAC_BAYES), row.get(NORM)
    if flatness is None or norm is None or not flatness > 0:
        return dict.fromkeys((BOUND, AUTHORS_BOUND), math.nan)
    noise = {BOUND: flatness**-0.5, AUTHORS_BOUND: flatness**-0.25}
    return {name: norm**2 / (4 * s**2) - math.log(s) + 10 for name, s in noise.items()}


EXPERIMENT = Experiment(
    name="002-fig-5",
    title="minima of LeNet-5 and five measures",
    source="Fig. 5",
    claim=(
        "Over 110 minima of LeNet-5 on CIFAR-10, relative flatness correlates with the "
        "generalization gap more strongly than the Hessian trace, the Fisher–Rao norm, a PAC-Bayes "
        "measure and the weight norm."
    ),
    analyse=analyse,
    trained=Trained(
        (Limit("outcome", reached=("train_loss", "running_loss")),),
        "The paper speaks of minima and its authors stop at such a loss.",
        needed=FEW,
    ),
    columns=("outcome", "variant", "batch_size", "seed", *REACHED, *CONFOUNDERS, *MEASURES),
    rule=(
        "over the networks that reached the loss at which training stops, the 95 % interval (over "
        "settings) of Spearman's correlation of relative flatness with the gap lies above 0, and "
        "no other measure of the paper has a larger correlation. Partly, if only the first "
        "holds. (At first "
        "all networks were judged and κ was the sum over layers; this was corrected after the "
        "runs, since the paper speaks of minima and uses one layer. The PAC-Bayes measure was then "
        "inverted once too often, which was corrected later.) Also "
        f"judged: that the Fisher–Rao norm has the lowest correlation, signs counted. {HOW}"
    ),
    set_up=(
        "LeNet-5 on CIFAR-10, trained in several ways with several batch sizes and seeds, until "
        "the training loss falls to 0.1, or the running loss where that is said below: the mean "
        "over the steps of an epoch, while the weights change. The loss of the network at the end "
        "can then be larger. The paper varies the initialization too and lists no "
        "settings; here there is one initialization. Relative flatness is that of the last layer: "
        "the paper uses one layer and does not say which. Its PAC-Bayes measure is taken as 1/σ², "
        "where σ is the noise on the weights that raises the error by a given amount: the paper "
        "says only that it is the one that did best in an earlier study. The sum over "
        "layers and the largest eigenvalue were added. The paper prints no numbers for this figure."
    ),
    scaled_down=ScaleTexts(
        "002-fig-5",
        {
            "": (
                "{data.samples} training images instead of 50,000, measured on "
                "{measure_options.samples} of them; {seeds} seeds, so {runs} networks."
            ),
            "quick": (
                "{data.samples} training images, {combinations} ways of training and {seeds} "
                "seed: a trial."
            ),
            "h200": (
                "{data.samples} training images instead of 50,000, at most {training.epochs} "
                "epochs, measured on {measure_options.samples} of the training images with the "
                "whole catalogue; {seeds} seeds, since two of the {combinations} groups do not "
                "reach the loss."
            ),
            "h200-full": (
                "All training images, normalized; SGD, SGD with momentum, Adam and RMSprop at one "
                "rate each, which is our choice, batches of {grid.batch_size}, weight decay of "
                "{grid.weight_decay}, {seeds} seeds: {runs} networks instead of 110, of which "
                "those count that reach a running loss of {stop.running_loss} within "
                "{training.epochs} "
                "epochs. Initialized by Xavier's rule with zero biases, as in the authors' code. "
                "Measured on all training images."
            ),
            "paper": (
                "Measured on {measure_options.samples} of the {data.samples} training images."
            ),
        },
    ),
    catalogue=True,
    settings=SETTINGS,
    measures=MEASURES,
)
