"""Relative flatness: curvature weighed by the weights themselves, so that rescaling cancels."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable

from ...engine.data_pass import Needs
from ...engine.row_estimator import estimate_rows
from ...engine.sweep.sums import RowKind
from ...engine.workspace import Workspace
from ...ground.errors import SpiritlevelError
from ...model.weight_matrices import WeightMatrix
from ...records.measurements import Measurement
from ..hessian_results import hessian_measurement, largest_layer, measured_rows
from ..options import A_LENGTH, Option, is_length
from ..registry import OF_ROWS, Measured, measure
from ..requirements import inputs, layer_weights, measured_weights

KAPPA = Needs(sweep=True, kappa=True)
FEATURES = Needs(sweep=True, kappa=True, standardized=True)
OF_LAYERS = {  # claims of a measure in which one factor on a whole layer cancels
    *("layer_rescale", "unit_permute", "batchnorm_absorb", "batchnorm_fold", "logit_shift"),
    "batch_split",
}
PAPER = "Petzka et al. 2021, Relative Flatness and Generalization, Definition 3"
THEOREM = "Petzka et al. 2021, Relative Flatness and Generalization, Theorem 4"
STANDARDIZED = (
    "The division magnifies a feature that hardly varies, however little it matters: there is no "
    "upper limit. A constant feature is divided by its size; one that is always zero does not "
    "count, nor one too small for the precision. Padding counts as data unless an attention_mask "
    "marks it. Confidence lowers the value, as it does relative.kappa."
)
TWO_PASSES = (
    "2 forwards, C−1 backwards (C for losses other than cross-entropy; a few probes if C is "
    "large; plus products with the Hessian if the network is not certified)"
)

WEIGHT_DECAY = Option(
    "weight_decay",
    None,
    lambda value: value is None or value == 0 or is_length(value),
    f"0 or {A_LENGTH}",
    "weight decay of the optimizer, as its argument of that name",
)


def weight_decay(workspace: Workspace, name: str) -> float:
    """The weight decay λ of the training, which only the optimizer knows."""
    decay = workspace.options.weight_decay
    if decay is None:
        raise SpiritlevelError(
            f"The measure {name!r} needs the weight decay of the training. Got none. Pass what the "
            "optimizer had, such as options={'weight_decay': 5e-4}, or 0 if it had none."
        )
    return float(decay)


standardized_measure = functools.partial(
    measure, needs=FEATURES, requires=(layer_weights, inputs), cost=TWO_PASSES
)
kappa_measure = functools.partial(
    measure, invariant=OF_LAYERS, needs=KAPPA, default=True, requires=(measured_weights,)
)


@kappa_measure(
    name="relative.kappa",
    summary="Relative flatness of every layer's weights, summed over the layers",
    formula=r"\sum_l \sum_{s,s'} \langle w_s, w_{s'}\rangle \operatorname{Tr} H^l_{s,s'}",
    paper=PAPER,
    misleads=(
        "Neuron-wise rescaling of a layer's input features still changes it. It falls with "
        "confidence (large logits), which says nothing about the decisions. Biases and "
        "normalization parameters are not included."
    ),
)
def kappa(workspace: Workspace) -> Measured:
    """κ of a layer is mean ‖Wᵀ G‖² over samples and factor columns."""
    weights = measured_weights(workspace, "relative.kappa")
    rows = estimate_rows(workspace, "kappa", weights, dict.fromkeys(weights, 1.0))
    return measured_rows(workspace, "relative.kappa", rows, {each: {each: 1.0} for each in weights})


@kappa_measure(
    name="relative.kappa_max",
    summary="Relative flatness of the sharpest layer",
    formula=r"\max_l \sum_{s,s'} \langle w_s, w_{s'}\rangle \operatorname{Tr} H^l_{s,s'}",
    paper=PAPER + "; network maximum as in Petzka et al. 2019, Appendix B",
    misleads="Like relative.kappa; one layer decides, often the first or the last.",
)
def kappa_max(workspace: Workspace) -> Measured:
    """The maximum over layers of relative.kappa."""
    name = "relative.kappa_max"
    weights = measured_weights(workspace, name)
    rows = estimate_rows(workspace, "kappa", weights, dict.fromkeys(weights, 1.0))
    layers = kappa(workspace).layers
    return Measured(largest_layer(workspace, name, layers, rows.for_more_of_a_part))


@measure(
    name="relative.kappa_decay",
    summary="Relative flatness of the loss with its weight decay, summed over the layers",
    formula=(
        r"\sum_l \sum_{s,s'} \langle w_s, w_{s'}\rangle \operatorname{Tr} H^l_{s,s'} "
        r"+ \lambda\, m_l \|W_l\|_F^2, \quad m_l \text{ columns}, \; "
        r"\lambda \text{ the weight decay}"
    ),
    paper=PAPER + "; its published code adds 2λ‖W‖² instead, without the factor m",
    invariant={"unit_permute", "batch_split"},
    misleads=(
        "Rescaling layers changes it: the function and its loss stay, the decay does not. The term "
        "is that of torch's weight_decay in SGD, Adam and RMSprop, λ/2 ‖W‖² in the loss; AdamW "
        "has none. It says more about the weights' size than about the loss where λ is large."
    ),
    needs=KAPPA,
    requires=(measured_weights, weight_decay),
    options=(WEIGHT_DECAY,),
)
def kappa_decay(workspace: Workspace) -> Measured:
    """The Hessian of λ/2 ‖W‖² is λ times the identity."""
    name = "relative.kappa_decay"
    decay, weights = weight_decay(workspace, name), measured_weights(workspace, name)
    matrices = workspace.surface.matrices
    rows = estimate_rows(workspace, "kappa", weights, dict.fromkeys(weights, 1.0))

    def measured(chosen: Iterable[str], factors: dict[str, float] | None) -> Measurement:
        added = decay * sum(_columns_times_squares(matrices[layer]) for layer in chosen)
        return hessian_measurement(workspace, name, rows.result(factors, added=added))

    layers = {layer: measured([layer], {layer: 1.0}) for layer in weights}
    return Measured(measured(weights, None), layers)


def _columns_times_squares(matrix: WeightMatrix) -> float:
    weight = matrix.of(matrix.parameter.detach().double())
    return weight.shape[-1] * float(weight.square().sum())


@standardized_measure(
    name="relative.kappa_std",
    summary="Relative flatness after dividing each input feature by its standard deviation",
    formula=r"\sum_l \operatorname{mean}_n \sum_k \|V_l W_l^\top G_{n,k}^l V_l^{-1}\|_F^2, "
    r"\quad V_l = \operatorname{diag}\bigl(\operatorname{std}_n a^l_j\bigr)",
    paper=THEOREM + ", with the standard deviation: as printed, with the variance, its claim fails",
    invariant=OF_ROWS,
    misleads=STANDARDIZED,
)
def kappa_std(workspace: Workspace) -> Measured:
    """A neuron scaled by α has α times the deviation, so V⁻¹a and WV stay the same."""
    return _standardized(workspace, "relative.kappa_std", "kappa_std")


@standardized_measure(
    name="relative.kappa_var",
    summary="Relative flatness after dividing each input feature by its variance, as printed",
    formula=r"\sum_l \operatorname{mean}_n \sum_k \|V_l W_l^\top G_{n,k}^l V_l^{-1}\|_F^2, "
    r"\quad V_l = \operatorname{diag}\bigl(\operatorname{var}_n a^l_j\bigr)",
    paper=THEOREM + ", as printed",
    invariant=OF_LAYERS,
    misleads=(
        "Neuron-wise rescaling changes it, contrary to the theorem: a neuron times α has α² times "
        "the variance while its weights have 1/α. relative.kappa_std does what it intends. "
        + STANDARDIZED
    ),
)
def kappa_var(workspace: Workspace) -> Measured:
    """The variance in place of the standard deviation."""
    return _standardized(workspace, "relative.kappa_var", "kappa_var")


def _standardized(workspace: Workspace, name: str, kind: RowKind) -> Measured:
    """From the sweep of all other κ; the features' scales took a forward pass of their own."""
    weights = layer_weights(workspace, name)
    rows = estimate_rows(workspace, kind, weights, dict.fromkeys(weights, 1.0))

    def measured(factors: dict[str, float] | None) -> Measurement:
        row = rows.result(factors)
        row = dataclasses.replace(row, cost=row.cost + workspace.features.spreads[1])
        return hessian_measurement(workspace, name, row)

    return Measured(measured(None), {layer: measured({layer: 1.0}) for layer in weights})
