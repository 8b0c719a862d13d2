"""The Gauss–Newton trace taken apart: input norm, path to the outputs, spread of the softmax."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from ...engine.estimate import Estimate
from ...engine.moments import Moments
from ...engine.weight_space.eigenvalues import residual_tolerance
from ...engine.workspace import Workspace
from ...records.measurements import Cost, Measurement, Status
from ..hessian_results import ROUND_OFF, estimate_measurement, largest_layer
from ..registry import Measured, measure
from ..requirements import layer_weights, softmax
from .matrices import forms_matrices, path_matrices
from .paths import centered_by_probes, check_paths

PAPER = "Sharpness can be manipulated and misleading for generalization"
COST = (
    "1 forward, C backwards, shared by the family (C outputs; beyond 32 outputs 2k+1 backwards for "
    "each layer, k Lanczos steps until the residual is small)"
)


path_measure = functools.partial(
    measure,
    invariant={"unit_permute", "batch_split"},
    requires=(softmax, layer_weights, check_paths),
    cost=COST,
    further_cost=lambda workspace: Cost(forwards=1, backwards=workspace.plan.num_outputs),
    shared_work="gradients along the paths",  # taken once for all of them
)


@path_measure(
    name="decomposition.centered",
    summary="Per-layer input norm times the spread of the class gradients along the paths, summed",
    formula=(
        r"\sum_l \operatorname{mean}_n s_{n,l} \sum_i p_i (v_i - \bar v)^\top M^{(l)}_n "
        r"(v_i - \bar v)"
    ),
    paper=PAPER + ", section 3.3",
    misleads=(
        "For fully connected networks it is the GGN trace of the weights. With shared weights "
        "(convolutions, sequences) it is only an upper bound of it, often a loose one. Rescaling "
        "changes it like the trace, and confidence alone makes it small. Biases and normalization "
        "parameters are not included."
    ),
    cost=(
        "1 forward, C backwards, shared by the family (C outputs; beyond 32 outputs a few output "
        "probes)"
    ),
    invariant={"unit_permute", "logit_shift", "batch_split"},
)
def centered(workspace: Workspace) -> Measured:
    """From the path matrices if they are formed, otherwise from factor columns or probes."""
    name = "decomposition.centered"
    layers = list(layer_weights(workspace, name))
    if forms_matrices(workspace):
        matrices = path_matrices(workspace)
        rows = {layer: _mean(matrices.centered, [layer]) for layer in layers}
        cost = matrices.cost

        def of(part: Estimate) -> Measurement:
            return Measurement(
                name,
                part.value,
                exact=True,
                data_stderr=part.data_stderr,
                cost=cost,
            )

        whole = _mean(matrices.centered, layers)
        return Measured(of(whole), {layer: of(row) for layer, row in rows.items()})
    return _centered_by_probes(workspace, name, layers)


def _centered_by_probes(workspace: Workspace, name: str, layers: list[str]) -> Measured:
    rows = centered_by_probes(workspace)
    rows.refine(dict.fromkeys(layers, 1.0), workspace.precision.rtol)

    def of(factors: Mapping[str, float], *, judged: bool = False) -> Measurement:
        estimate = rows.estimate(factors)
        return estimate_measurement(
            workspace,
            name,
            estimate,
            text="" if estimate.exact else rows.text,
            missed=lambda: rows.missed(factors, estimate),
            cost=rows.cost,
            judged=judged,
        )

    per_layer = {layer: of({layer: 1.0}) for layer in layers}
    return Measured(of(dict.fromkeys(layers, 1.0), judged=True), per_layer)


@path_measure(
    name="decomposition.upper_bound",
    summary="Scale-aware upper bound of the GGN trace: input norms times path eigenvalues, summed",
    formula=(
        r"2 \sum_l \operatorname{mean}_n s_{n,l}\, \lambda_{\max}\bigl(M^{(l)}_n\bigr) "
        r"\sum_i p_i \|\delta_i\|^2"
    ),
    paper=PAPER + ", section 3.2 and appendix A.1",
    misleads=(
        "A loose bound: it does not depend on confidence (its last factor is 1 at the outputs), so "
        "it stays large where the trace vanishes. It bounds the trace of the weights, without the "
        "biases. Rescaling changes it."
    ),
)
def upper_bound(workspace: Workspace) -> Measured:
    """The bound of each layer and their sum."""
    name = "decomposition.upper_bound"
    layers = list(layer_weights(workspace, name))
    whole = _eigenvalues(workspace, name, "bound", layers)
    return Measured(
        whole, {layer: _eigenvalues(workspace, name, "bound", [layer]) for layer in layers}
    )


@path_measure(
    name="decomposition.path_lambda_max",
    summary=(
        "Largest eigenvalue of the path matrix, averaged over samples, in the layer where it is "
        "largest"
    ),
    formula=r"\max_l \operatorname{mean}_n \lambda_{\max}\bigl(M^{(l)}_n\bigr)",
    paper=PAPER + ", section 3.1 (definition of the path matrix)",
    misleads=(
        "It shows the scale of the weights after a layer, not flatness: at a last linear layer it "
        "is 1 by definition, and rescaling changes it at will."
    ),
    invariant={"unit_permute", "free_shift", "batch_split"},
)
def path_lambda_max(workspace: Workspace) -> Measured:
    """Of each layer, and the largest of them."""
    name = "decomposition.path_lambda_max"
    layers = {
        layer: _eigenvalues(workspace, name, "top", [layer])
        for layer in layer_weights(workspace, name)
    }
    return Measured(largest_layer(workspace, name, layers), layers)


def _mean(moments: Moments, layers: list[str]) -> Estimate:
    spread = moments.stderr(layers)
    return Estimate(moments.mean(layers), data_variance=None if spread is None else spread**2)


def _eigenvalues(workspace: Workspace, name: str, kind: str, layers: list[str]) -> Measurement:
    """Σ over layers of one kind of the path matrices' rows."""
    matrices = path_matrices(workspace)
    mean = _mean(matrices.bound if kind == "bound" else matrices.top, layers)
    parts = [matrices.residual(kind, layer) for layer in layers]
    residual = None if None in parts else sum(part for part in parts if part is not None)
    reached = (residual or 0.0) / abs(mean.value) if mean.value else 0.0
    missed = reached > residual_tolerance(workspace.surface.dtype)
    text = ""
    if matrices.steps:
        text = (
            f"up to {matrices.steps} Lanczos steps a layer for {workspace.plan.num_outputs} outputs"
        )
    if missed:
        enough = 2 * workspace.precision.max_passes
        text += f"; the mean lies within the residual {residual:.2g}. Try max_passes={enough}."
    return Measurement(
        name,
        mean.value,
        exact=reached <= ROUND_OFF and not missed,
        residual=residual,
        data_stderr=mean.data_stderr,
        status=Status.NOT_CONVERGED if missed else Status.OK,
        text=text,
        cost=matrices.cost,
    )
