"""Neuron-wise flatness: unchanged by every linear reparameterization of a ReLU network."""

from __future__ import annotations

import functools

from ...engine.data_pass import Needs
from ...engine.row_estimator import estimate_rows
from ...engine.workspace import Workspace
from ..hessian_results import hessian_measurement, largest_layer, measured_rows
from ..registry import OF_ROWS, Measured, measure
from ..requirements import measured_weights

RHO = Needs(sweep=True, rho=True)
PAPER = "Petzka et al. 2019, A Reparameterization-Invariant Flatness Measure, Appendix B"


rho_measure = functools.partial(
    measure, paper=PAPER, invariant=OF_ROWS, needs=RHO, default=True, requires=(measured_weights,)
)


@rho_measure(
    name="neuron.rho_sum",
    summary="Curvature along each input neuron's outgoing weights, summed over neurons and layers",
    formula=r"\sum_l \sum_j w_{:j}^\top H^l_{:j,:j}\, w_{:j}",
    misleads=(
        "It looks only along the weights themselves, one direction per neuron; curvature in other "
        "directions does not count. It falls with confidence, like every softmax curvature."
    ),
)
def rho_sum(workspace: Workspace) -> Measured:
    """ρ_σ of each layer and ρ^Σ of the network."""
    weights = measured_weights(workspace, "neuron.rho_sum")
    rows = estimate_rows(workspace, "rho", weights, dict.fromkeys(weights, 1.0))
    return measured_rows(workspace, "neuron.rho_sum", rows, {each: {each: 1.0} for each in weights})


@rho_measure(
    name="neuron.rho_max",
    summary="Curvature along the outgoing weights of the sharpest neuron",
    formula=r"\max_{l,j}\, w_{:j}^\top H^l_{:j,:j}\, w_{:j}",
    misleads="Like neuron.rho_sum; one neuron decides, so it is the noisiest of the family.",
)
def rho_max(workspace: Workspace) -> Measured:
    """ρ of each layer and ρ^max of the network; in a convolution a neuron is an input channel."""
    weights = measured_weights(workspace, "neuron.rho_max")
    rows = estimate_rows(workspace, "rho", weights, dict.fromkeys(weights, 1.0))

    layers = {
        layer: hessian_measurement(workspace, "neuron.rho_max", rows.sharpest_neuron(layer))
        for layer in weights
    }
    largest = largest_layer(workspace, "neuron.rho_max", layers, rows.for_more_of_a_part)
    return Measured(largest, layers)
