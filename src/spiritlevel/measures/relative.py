"""Relative flatness: curvature weighed by the weights themselves, so that rescaling cancels."""

from __future__ import annotations

from ..estimators.exact import Needs
from ..estimators.hessian import precise
from ..estimators.work import Work
from ._layers import largest_layer, measured_weights
from ._registry import Measured, measure
from ._results import hessian_measurement

KAPPA = Needs(sweep=True, kappa=True)
PAPER = "Petzka et al. 2021, Relative Flatness and Generalization, Definition 3"


@measure(
    name="relative.kappa",
    summary="Relative flatness of every layer's weights, summed over the layers",
    formula=r"\sum_l \sum_{s,s'} \langle w_s, w_{s'}\rangle \operatorname{Tr} H^l_{s,s'}",
    paper=PAPER,
    invariant={"layer_rescale", "unit_permute", "batch_split"},
    misleads=(
        "Neuron-wise rescaling of a layer's input features still moves it. Falls with confidence "
        "(large logits), which says nothing about the decision. Biases and normalization "
        "parameters are not part of it."
    ),
    needs=KAPPA,
    requires=("matrix",),
)
def kappa(work: Work) -> Measured:
    """κ of a layer is mean ‖Wᵀ G‖² over samples and factor columns."""
    weights = measured_weights(work, "relative.kappa")
    rows = precise(work, "kappa", weights, dict.fromkeys(weights, 1.0))
    layers = {
        layer: hessian_measurement(work, "relative.kappa", rows.found({layer: 1.0}))
        for layer in weights
    }
    return Measured(hessian_measurement(work, "relative.kappa", rows.found()), layers)


@measure(
    name="relative.kappa_max",
    summary="Relative flatness of the sharpest layer",
    formula=r"\max_l \sum_{s,s'} \langle w_s, w_{s'}\rangle \operatorname{Tr} H^l_{s,s'}",
    paper=PAPER + "; network maximum as in Petzka et al. 2019, Appendix B",
    invariant={"layer_rescale", "unit_permute", "batch_split"},
    misleads="As relative.kappa; one layer decides, often the first or the last.",
    needs=KAPPA,
    requires=("matrix",),
)
def kappa_max(work: Work) -> Measured:
    """The maximum over layers of relative.kappa."""
    return Measured(largest_layer("relative.kappa_max", kappa(work).layers))
