"""Paper 000, Table 3, Figs. 3 and 4: flatness of the head and the gap over 84 ResNet-18."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from ..study.statistics import pearson
from .experiment import Experiment, Outcome, Row
from .findings import above, estimate, verdict
from .population import CONFOUNDERS, GAP, converged, correlations, scatter, whole_catalogue, why
from .rows import column

HEAD = "head.kappa"
OTHERS = ("head.trace", "curvature.trace", "relative.kappa", "norms.weight")
BOUND = "bound.generalization"
PAPER = {"Pearson correlation": 0.5803, "Spearman correlation": 0.7621}
OPTIMIZERS = {"sgd": "SGD", "adamw": "AdamW"}  # the words that the names of the ways begin with


def analyse(rows: Sequence[Row]) -> Outcome:
    """Both correlations of the head's relative flatness with the gap, beside the paper's."""
    kept = converged(rows)
    table, ranks = correlations(kept, (HEAD, *OTHERS))
    linear = pearson(column(kept, HEAD), column(kept, GAP))
    ours = {"Pearson correlation": linear, "Spearman correlation": ranks[HEAD]}
    findings = [
        above(f"flatness of the head rises with the gap ({name})", found, paper=PAPER[name])
        for name, found in ours.items()
    ]
    return Outcome(
        table=table,
        figure=scatter(kept, HEAD),
        more=[whole_catalogue(kept)],
        why=why(kept, HEAD, "relative flatness of the head"),
        beside={name: estimate(found) for name, found in ours.items()},
        findings=findings,
        agrees=verdict(findings),
        conclusion=(
            f"Relative flatness of the head has a Pearson correlation of {linear} and a Spearman "
            f"correlation of {ranks[HEAD]} with the gap over {linear.n} networks "
            f"({len(rows) - len(kept)} diverged). {_bound(kept)} {_optimizers(kept)}"
        ),
    )


def _bound(rows: Sequence[Row]) -> str:
    """Fig. 3 (b): how many gaps the bound of Theorem 4 covers, and by how far it overshoots."""
    pairs = [(row.get(BOUND), row[GAP]) for row in rows]
    known = [(bound, gap) for bound, gap in pairs if bound is not None and gap > 0]
    covered = sum(bound >= gap for bound, gap in known)
    finite = [bound / gap for bound, gap in known if math.isfinite(bound)]
    if not finite:
        return "The bound was not found for any of them."
    return (
        f"The bound covers {covered} of {len(known)} positive gaps; it is {min(finite):.3g} times "
        "the gap or more."
    )


def _optimizers(rows: Sequence[Row]) -> str:
    """Fig. 4: which optimizer ends flatter, and with which gap."""
    parts = []
    for prefix, words in OPTIMIZERS.items():
        own = [row for row in rows if row["variant"].startswith(prefix)]
        if own:
            flatness, gap = (statistics.median(column(own, name)) for name in (HEAD, GAP))
            parts.append(f"{words} has a median flatness of {flatness:.3g} and gap of {gap:.3g}")
    return f"{'; '.join(parts)}."


EXPERIMENT = Experiment(
    name="000-table-3",
    title="84 ResNet-18: flatness of the head and the gap",
    source="Table 3, Figs. 3 and 4",
    claim=(
        "Over 84 ResNet-18 of different optimizers, learning rates and batch sizes, relative "
        "flatness of the convolutional head correlates with the generalization gap."
    ),
    analyse=analyse,
    columns=(
        *("outcome", "variant", "batch_size", "seed", GAP, *CONFOUNDERS, HEAD, *OTHERS, BOUND),
    ),
    rule=(
        "the 95 % intervals of both Pearson's and Spearman's correlation lie above 0. Partly, if "
        "one does. The bound and the optimizers are reported, not judged."
    ),
    set_up=(
        "ResNet-18 with a 1×1 convolution and global average pooling as its head, on CIFAR-10, 30 "
        "epochs, SGD with momentum and AdamW at three learning rates each, two batch sizes, seven "
        "seeds."
    ),
    scaled_down={
        "": "Width 8 instead of 64, 2,000 images, 10 epochs, 1 seed, from random weights.",
        "quick": "Width 4, 500 images, 3 epochs, two ways of training, 1 seed: a trial.",
        "paper": (
            "Seven learning rates from 0.0001 to 0.1 for each optimizer, batches of 64 and 128, "
            "three seeds. Of these the paper names the rates 0.005 and 0.01, both batch sizes and "
            "the number of networks; the rest is our reading of it. Its appendix varies the weight "
            "decay and gives no values: here it is 0. From random weights instead of ones trained "
            "on ImageNet; measured on 5,000 of the 50,000 training images."
        ),
        "h200": (
            "Width 16 instead of 64, 20,000 images instead of 50,000, 20 epochs instead of 30, "
            "batches of 64 and 128, from random weights; measured on 256 of the training images "
            "with the whole catalogue."
        ),
    },
    catalogue=True,
    measures=(HEAD, *OTHERS),
    paper_values=PAPER,
)
