"""Paper 002, Fig. 5: 110 minima of LeNet-5, relative flatness against five other measures."""

from __future__ import annotations

from collections.abc import Sequence

from ..study.statistics import spearman
from .experiment import Experiment, Outcome, Row
from .findings import above, fact, missed, verdict
from .population import (
    CONFOUNDERS,
    GAP,
    converged,
    correlations,
    scatter,
    strongest,
    whole_catalogue,
    why,
)
from .rows import column

KAPPA = "relative.kappa"
RIVALS = (
    "curvature.trace",
    "norms.fisher_rao",
    "pac_bayes.sigma",
    "norms.weight",
    "curvature.lambda_max",
)


def analyse(rows: Sequence[Row]) -> Outcome:
    """Relative flatness must correlate with the gap, and more than each of the others."""
    kept = converged(rows)
    table, ranks = correlations(kept, (KAPPA, *RIVALS))
    best = strongest(ranks)
    trained = [row for row in kept if row["outcome"] == "train_loss"]
    reached = spearman(column(trained, KAPPA), column(trained, GAP))
    correlates = above("relative flatness correlates with the gap", ranks[KAPPA])
    first = fact("more strongly than every other measure", best == KAPPA, f"the first is {best}")
    findings = [correlates, first]
    return Outcome(
        table=table,
        figure=scatter(kept, KAPPA),
        more=[whole_catalogue(kept)],
        why=why(kept, KAPPA),
        findings=findings,
        agrees=verdict(findings) if correlates.result == "held" else missed(findings),
        conclusion=(
            f"Relative flatness has a rank correlation of {ranks[KAPPA]} with the gap over "
            f"{ranks[KAPPA].n} minima ({len(rows) - len(kept)} diverged); the strongest of all is "
            f"{best} with {ranks[best]}. Over the {reached.n} that reached the training loss asked "
            f"for, relative flatness has {reached}."
        ),
    )


EXPERIMENT = Experiment(
    name="002-fig-5",
    title="110 minima of LeNet-5",
    source="Fig. 5",
    claim=(
        "Over 110 minima of LeNet-5 on CIFAR-10, relative flatness correlates with the "
        "generalization gap more strongly than the Hessian trace, the Fisher–Rao norm, a PAC-Bayes "
        "measure and the weight norm."
    ),
    analyse=analyse,
    columns=("outcome", "variant", "batch_size", "seed", "gap", *CONFOUNDERS, KAPPA, *RIVALS),
    rule=(
        "the 95 % interval of Spearman's correlation of relative flatness with the gap lies above "
        "0, and no other measure has a larger correlation. Partly, if only the first holds."
    ),
    set_up=(
        "LeNet-5 on CIFAR-10 by five ways of training (SGD and Adam at several learning rates) and "
        "two batch sizes, several seeds each, until the training loss falls to 0.1. The paper does "
        "not list its settings."
    ),
    scaled_down={
        "": "2,000 training images instead of 50,000, measured on 500 of them; 3 seeds, so 30.",
        "quick": "500 training images, four ways of training and one seed: a trial.",
        "h200": (
            "10,000 training images instead of 50,000, at most 200 epochs, measured on 1,000 of "
            "the training images with the whole catalogue; 14 seeds, since two of the ten groups "
            "do not reach the loss."
        ),
        "paper": "Measured on 5,000 of the 50,000 training images.",
    },
    catalogue=True,
    measures=(KAPPA, *RIVALS),
)
