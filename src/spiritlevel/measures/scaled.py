"""Scaled curvature: the Hessian trace of a layer times its squared weight norm."""

from __future__ import annotations

from .._core import Measurement
from ..estimators.exact import Needs
from ..estimators.work import Work
from ._layers import largest_layer, measured_weights
from ._registry import Measured, measure
from ._results import hessian_measurement

SWEEP = Needs(sweep=True)
PAPER = "Petzka et al. 2019, A Reparameterization-Invariant Flatness Measure, Table 1"


@measure(
    name="scaled.trace",
    summary="Squared weight norm times Hessian trace of each layer's weights, summed (κ_τ)",
    formula=r"\sum_l \|w_l\|^2 \operatorname{Tr} \nabla^2_{w_l} L",
    paper=PAPER,
    invariant={"layer_rescale", "unit_permute", "batch_split"},
    misleads=(
        "Neuron-wise rescaling moves it, and a few large weights that the loss does not depend on "
        "raise it. Biases and normalization parameters are not part of it."
    ),
    needs=SWEEP,
)
def scaled_trace(work: Work) -> Measured:
    """κ_τ of each layer and their sum."""
    run = work.run(SWEEP)
    weights = measured_weights(work, "scaled.trace")
    norms = {
        layer: float(work.surface.parameters[name].detach().double().square().sum())
        for layer, name in weights.items()
    }

    def of(layers: list[str]) -> Measurement:
        names, factors = [weights[layer] for layer in layers], [norms[layer] for layer in layers]
        mean, error = run.sweep.trace.mean(names, factors), run.sweep.trace.stderr(names, factors)
        return hessian_measurement(work, run, "scaled.trace", mean, error, names)

    return Measured(of(list(weights)), {layer: of([layer]) for layer in weights})


@measure(
    name="scaled.trace_max",
    summary="The largest layer of scaled.trace",
    formula=r"\max_l \|w_l\|^2 \operatorname{Tr} \nabla^2_{w_l} L",
    paper=PAPER,
    invariant={"layer_rescale", "unit_permute", "batch_split"},
    misleads="As scaled.trace; the widest layer tends to decide.",
    needs=SWEEP,
    default=False,
)
def scaled_trace_max(work: Work) -> Measured:
    """The maximum over layers of scaled.trace."""
    return Measured(largest_layer("scaled.trace_max", scaled_trace(work)))
