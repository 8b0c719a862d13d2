"""Sensitivity: how much the outputs follow the inputs, and the loss the features of a layer."""

from __future__ import annotations

import dataclasses
import functools

from ...engine.data_pass import Needs
from ...engine.estimate import Estimate
from ...engine.row_estimator import estimate_rows
from ...engine.sweep.probed_rows import ProbedRows
from ...engine.workspace import Workspace
from ...math.feature_matrices import KERNELS
from ...records.measurements import Cost, Measurement
from ..eigenvalues import of_weights
from ..hessian_results import eigenvalue_measurement, estimate_measurement, hessian_measurement
from ..options import length, word_or_length
from ..registry import EVERY, OF_OUTPUTS, Measured, measure
from ..requirements import layer_weights
from .input_derivative import ALL, OUTSIDE, REGION, check_input, check_region, input_jacobian
from .turned_features import feature_layer, prediction_factor, robustness

MANIPULATED = "Sharpness can be manipulated and misleading for generalization, Table 3"
RELATIVE = "Petzka et al. 2021, Relative Flatness and Generalization, "
OF_A_LAYER = EVERY - {"neuron_rescale", "free_shift"}
JACOBIAN_COST = "1 forward, C backwards, shared by both (a few output probes beyond 16 outputs)"

DELTA = length("delta", 0.1, "relative size of the feature perturbations")
KERNEL = word_or_length(
    "kernel",
    "sphere",
    "how far features are moved: 'sphere' (all by delta), 'ball' (uniform in it), or the "
    "standard deviation, in units of delta, of a normal that is cut off at delta",
    KERNELS,
)


jacobian_measure = functools.partial(
    measure,
    paper=MANIPULATED,
    invariant=OF_OUTPUTS,
    direction=None,
    cost=JACOBIAN_COST,
    further_cost=lambda workspace: Cost(forwards=1, backwards=workspace.plan.num_outputs),
)


@jacobian_measure(
    name="sensitivity.jacobian",
    summary="Root mean square over samples of the norm of the input–output Jacobian",
    formula=(r"\sqrt{\operatorname{mean}_n \Bigl\| \frac{\partial z_n}{\partial x_n} \Bigr\|_F^2}"),
    misleads=(
        "It scales with the outputs: multiplying all logits by 2 doubles it without changing a "
        "decision. It depends on how the inputs are normalized; compare only networks that see the "
        "same inputs."
    ),
    requires=(check_input,),
)
def jacobian(workspace: Workspace) -> Measured:
    """The norm of the Jacobian with respect to all inputs."""
    return Measured(_root(workspace, "sensitivity.jacobian", input_jacobian(workspace), ALL, 1.0))


@jacobian_measure(
    name="sensitivity.jacobian_outside",
    summary="The Jacobian norm outside a region of the images, rescaled to the region's size",
    formula=(
        r"\sqrt{\frac{hw}{HW - hw} \operatorname{mean}_n "
        r"\Bigl\| \frac{\partial z_n}{\partial x_n^{\mathrm{outside}}} \Bigr\|_F^2}"
    ),
    misleads=(
        "It assumes that sensitivity is spread evenly over the rest of the image; borders and "
        "empty background make it smaller than the same area elsewhere. It scales with the "
        "outputs, like sensitivity.jacobian."
    ),
    requires=(check_input, check_region),
    options=(REGION,),
)
def jacobian_outside(workspace: Workspace) -> Measured:
    """From the same passes as sensitivity.jacobian."""
    name = "sensitivity.jacobian_outside"
    rows = input_jacobian(workspace)
    _, high, wide = check_input(workspace, name)
    _, _, height, width = check_region(workspace, name)
    area = height * width
    return Measured(_root(workspace, name, rows, OUTSIDE, area / (high * wide - area)))


def _root(
    workspace: Workspace, name: str, rows: ProbedRows, row: str, factor: float
) -> Measurement:
    """√(factor × mean square); errors by the delta method, so half the relative ones."""
    square = rows.refine({row: 1.0}, 2 * workspace.precision.rtol).scaled(factor)
    value = square.value**0.5
    slope = 0.5 / value if value else 0.0
    data = None if square.data_variance is None else slope**2 * square.data_variance
    variance = slope**2 * square.variance if value else square.variance
    estimate = Estimate(value, variance, square.dof, data, drawn=square.drawn)
    return estimate_measurement(
        workspace,
        name,
        estimate,
        text="" if estimate.exact else rows.text,
        missed=lambda: rows.missed({row: 1.0}, estimate),
        cost=rows.cost,
    )


@measure(
    name="sensitivity.feature_robustness",
    summary="Mean rise of the loss when the features of the last layer are moved at random",
    formula=(
        r"\mathbb{E}_{A \in O(m),\, \rho} \bigl[ L(W + \delta \rho W A) - L(W) \bigr], "
        r"\quad \rho \le 1 \text{ a length under the kernel}"
    ),
    paper=RELATIVE + "Definition 1 and Theorem 5; Proposition 2 for other kernels than the sphere",
    invariant=OF_A_LAYER,
    misleads=(
        "An average over all directions: with many features m it says little about the worst one. "
        "Neuron-wise rescaling of the features changes it. Labels are assumed constant around each "
        "sample, which is not true for large δ. In many dimensions nearly all of a ball, or of a "
        "wide normal, lies close to the sphere."
    ),
    requires=(feature_layer,),
    options=(DELTA, KERNEL),
    found_by="draws",
    cost="a few forwards for the head; 2 forwards per draw for another layer",
)
def feature_robustness(workspace: Workspace) -> Measured:
    """Robustness of the features of the head, or of the last layer that was chosen."""
    name = "sensitivity.feature_robustness"
    drawn = robustness(workspace, name)
    m = estimate_measurement(
        workspace,
        name,
        drawn.estimate(),
        text=drawn.text(),
        missed=drawn.missed,
        cost=drawn.cost,
    )
    return Measured(m, {drawn.layer: m})


@measure(
    name="sensitivity.robustness_prediction",
    summary="What relative flatness predicts for sensitivity.feature_robustness at a minimum",
    formula=(
        r"\frac{\delta^2}{2m} \mathbb{E}[\rho^2]\, \kappa, \quad m \text{ features}, \; "
        r"\rho = 1 \text{ on the sphere}"
    ),
    paper=RELATIVE + "Theorem 5",
    invariant=OF_A_LAYER,
    misleads=(
        "Second order in δ only: for larger δ the true rise differs. The theorem holds at a "
        "minimum of this layer's loss and not elsewhere."
    ),
    needs=Needs(sweep=True, kappa=True),
    requires=(feature_layer,),
    options=(DELTA, KERNEL),
)
def robustness_prediction(workspace: Workspace) -> Measured:
    """κ of the same layer, with its error."""
    name = "sensitivity.robustness_prediction"
    layer, weights = feature_layer(workspace, name), layer_weights(workspace, name)
    kappa = estimate_rows(workspace, "kappa", weights, {layer: 1.0}).result()
    text = f"layer {layer!r}" + (f"; κ: {kappa.text}" if kappa.text else "")
    scaled = kappa.estimate.scaled(prediction_factor(workspace, layer))
    m = hessian_measurement(workspace, name, dataclasses.replace(kappa, estimate=scaled, text=text))
    return Measured(m, {layer: m})


@measure(
    name="sensitivity.robustness_bound",
    summary=(
        "Upper bound on the rise of the loss under any feature matrix of norm δ, at a minimum"
    ),
    formula=r"\tfrac{1}{2} \delta^2 \|W\|_F^2\, \lambda_{\max}\bigl(\nabla^2_W L\bigr)",
    paper="Petzka et al. 2019, A Reparameterization-Invariant Flatness Measure, appendix C.1",
    invariant=OF_A_LAYER - {"logit_shift"},
    misleads=(
        "Holds up to terms of order δ³, and at a minimum only. One direction decides, and few "
        "feature matrices come near it."
    ),
    needs=Needs(products=True),
    requires=(feature_layer,),
    options=(DELTA,),
    found_by="products",
)
def robustness_bound(workspace: Workspace) -> Measured:
    """κ^l = ‖W‖² λ_max of the same layer, as scaled.lambda_max has it."""
    name = "sensitivity.robustness_bound"
    layer, half = feature_layer(workspace, name), workspace.options.delta**2 / 2
    weight = layer_weights(workspace, name)[layer]
    pairs, cost = of_weights(workspace, [weight])[weight]
    squares = float(workspace.surface.parameters[weight].detach().double().square().sum())
    m = eigenvalue_measurement(workspace, name, pairs, cost=cost, factor=half * squares)
    m = dataclasses.replace(m, text="; ".join(t for t in (f"layer {layer!r}", m.text) if t))
    return Measured(m, {layer: m})
