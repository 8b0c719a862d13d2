"""Scaled curvature: trace or largest eigenvalue of a layer's Hessian times its squared norm."""

from __future__ import annotations

import dataclasses
import functools

from ...engine.data_pass import Needs
from ...engine.row_estimator import RowEstimator, estimate_rows
from ...engine.sweep.sums import Factors
from ...engine.workspace import Workspace
from ...records.measurements import Measurement, Status
from ..eigenvalues import of_weights, room_for_weights
from ..hessian_results import eigenvalue_measurement, largest_layer, measured_rows
from ..registry import Measured, measure
from ..requirements import measured_weights

SWEEP = Needs(sweep=True)
PRODUCTS = Needs(products=True)
PAPER = "Petzka et al. 2019, A Reparameterization-Invariant Flatness Measure, Table 1"


eigenvalue_measure = functools.partial(
    measure,
    paper=PAPER,
    invariant={"layer_rescale", "unit_permute", "batch_split"},
    needs=PRODUCTS,
    found_by="products",
    requires=(measured_weights, room_for_weights),
)
trace_measure = functools.partial(
    measure,
    paper=PAPER,
    invariant={"layer_rescale", "unit_permute", "batch_split"},
    needs=SWEEP,
    requires=(measured_weights,),
)


@trace_measure(
    name="scaled.trace",
    summary="Squared weight norm times Hessian trace of each layer's weights, summed (κ_τ)",
    formula=r"\sum_l \|w_l\|^2 \operatorname{Tr} \nabla^2_{w_l} L",
    misleads=(
        "Neuron-wise rescaling changes it, and a few large weights that the loss does not depend "
        "on raise it. Biases and normalization parameters are not included."
    ),
    default=True,
)
def scaled_trace(workspace: Workspace) -> Measured:
    """κ_τ of each layer and their sum."""
    rows, factors = _rows(workspace)
    return measured_rows(workspace, "scaled.trace", rows, factors)


def _rows(workspace: Workspace) -> tuple[RowEstimator, dict[str, Factors]]:
    """The estimated traces, and the factors of each layer."""
    weights = measured_weights(workspace, "scaled.trace")
    norms = {name: _squared_norm(workspace, name) for name in weights.values()}
    names = list(workspace.surface.parameters)
    rows = estimate_rows(workspace, "trace", {name: name for name in names}, norms)
    return rows, {layer: {name: norms[name]} for layer, name in weights.items()}


@trace_measure(
    name="scaled.trace_max",
    summary="Squared weight norm times Hessian trace, in the layer where it is largest",
    formula=r"\max_l \|w_l\|^2 \operatorname{Tr} \nabla^2_{w_l} L",
    misleads="Like scaled.trace; the widest layer tends to decide.",
)
def scaled_trace_max(workspace: Workspace) -> Measured:
    """The maximum over layers of scaled.trace."""
    layers, rows = scaled_trace(workspace).layers, _rows(workspace)[0]
    return Measured(largest_layer(workspace, "scaled.trace_max", layers, rows.for_more_of_a_part))


@eigenvalue_measure(
    name="scaled.lambda_max",
    summary="Squared weight norm times largest Hessian eigenvalue of each layer's weights (κ^l)",
    formula=r"\sum_l \|w_l\|^2\, \lambda_{\max}\bigl(\nabla^2_{w_l} L\bigr)",
    misleads=(
        "Neuron-wise rescaling changes it; one direction per layer. Biases and normalization "
        "parameters are not included."
    ),
)
def scaled_lambda_max(workspace: Workspace) -> Measured:
    """κ^l of each layer and their sum; the layers share their passes over the data."""
    weights = measured_weights(workspace, "scaled.lambda_max")
    eigenvalues = of_weights(workspace, list(weights.values()))
    layers: dict[str, Measurement] = {
        layer: eigenvalue_measurement(
            workspace, "scaled.lambda_max", pairs, cost=cost, factor=_squared_norm(workspace, name)
        )
        for (layer, name), (pairs, cost) in zip(weights.items(), eigenvalues.values(), strict=True)
    }
    missed = [m for m in layers.values() if m.status is not Status.OK]
    whole = dataclasses.replace(
        (missed or list(layers.values()))[0],
        value=sum(m.value for m in layers.values()),
        exact=all(m.exact for m in layers.values()),
        residual=sum(m.residual or 0.0 for m in layers.values()),
    )
    return Measured(whole, layers)


@eigenvalue_measure(
    name="scaled.lambda_max_max",
    summary=(
        "Squared weight norm times largest Hessian eigenvalue, in the layer where it is largest"
    ),
    formula=r"\max_l \|w_l\|^2\, \lambda_{\max}\bigl(\nabla^2_{w_l} L\bigr)",
    misleads="Like scaled.lambda_max; one direction of one layer decides.",
)
def scaled_lambda_max_max(workspace: Workspace) -> Measured:
    """The maximum over layers of scaled.lambda_max."""
    return Measured(
        largest_layer(workspace, "scaled.lambda_max_max", scaled_lambda_max(workspace).layers)
    )


def _squared_norm(workspace: Workspace, name: str) -> float:
    return float(workspace.surface.parameters[name].detach().double().square().sum())
