"""Quantities that differ between networks and are not flatness, but change the flatness numbers.

The one table of them. Each view takes the part that answers its question.
"""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Iterable

GINI = "softmax.gini"
PREDICTION = "sensitivity.robustness_prediction"  # a multiple of relative flatness


@dataclasses.dataclass(frozen=True)
class Confounder:
    """A quantity, and where it is taken into account."""

    label: str
    measured_along: bool = True  # audit and compare measure it in addition to what was asked for
    held_fixed: bool = False  # in a study's partial correlations, unless the user names others
    paper_label: str = ""  # in the papers' populations, where it is held fixed; "" where it is not
    # Measures that it is a factor of: holding it fixed takes a part of the measure itself away.
    factor_of: tuple[str, ...] = ()


TABLE = {
    "train_loss": Confounder(
        "training loss",
        measured_along=False,  # known of a training run, not of a network
        held_fixed=True,
        paper_label="training loss",
    ),
    GINI: Confounder(
        "Gini impurity of the predictions",
        held_fixed=True,
        paper_label="uncertainty (1 − ‖p‖²)",
        # The curvature of softmax and cross-entropy is diag(p) − ppᵀ, whose trace is 1 − ‖p‖².
        factor_of=("head.*", "relative.*", "scaled.*", "neuron.*", "curvature.*", PREDICTION),
    ),
    "norms.weight": Confounder(
        "weight norm",
        held_fixed=True,
        factor_of=("head.kappa", "head.scaled_*", "relative.*", "scaled.*", "neuron.*", PREDICTION),
    ),
    "activity.activation_norm": Confounder("activation norm"),
    "activity.frequency": Confounder("activation frequency"),
}
MEASURED_ALONG = {name: each.label for name, each in TABLE.items() if each.measured_along}
HELD_FIXED = tuple(name for name, each in TABLE.items() if each.held_fixed)
IN_PAPERS = {name: each.paper_label for name, each in TABLE.items() if each.paper_label}


def factors_held_fixed(measure: str, given: Iterable[str]) -> list[str]:
    """Which of the confounders are factors of the measure, or of a layer's: MEASURE[LAYER].

    >>> factors_held_fixed("head.kappa", ["train_loss", "softmax.gini"])
    ['softmax.gini']
    >>> factors_held_fixed("norms.weight", ["softmax.gini"])
    []
    """
    name = measure.partition("[")[0].partition("/")[0]
    return [
        each
        for each in given
        if each in TABLE and any(fnmatch.fnmatchcase(name, p) for p in TABLE[each].factor_of)
    ]
