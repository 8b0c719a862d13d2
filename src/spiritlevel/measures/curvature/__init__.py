"""Curvature: trace, Frobenius norm and extreme eigenvalues of the Hessian, and the GGN's trace."""

from __future__ import annotations

import functools

from ...engine.data_pass import Needs
from ...engine.refine import advice
from ...engine.row_estimator import (
    RowEstimate,
    columns_text,
    estimate_rows,
    hidden_text,
    probes_text,
)
from ...engine.workspace import Workspace
from ...records.measurements import Measurement, Status
from ..eigenvalues import of_network, room_for_network, subspace_of_network
from ..hessian_results import eigenvalue_measurement, hessian_measurement, measured_rows
from ..registry import Measured, measure
from .square_probes import trace_squared as estimate_trace_squared

SWEEP = Needs(sweep=True)
PRODUCTS = Needs(products=True)


extreme_measure = functools.partial(
    measure,
    invariant={"unit_permute", "logit_shift", "batch_split"},
    needs=PRODUCTS,
    requires=(room_for_network,),
    found_by="products",
)
trace_measure = functools.partial(
    measure,
    invariant={"unit_permute", "logit_shift", "batch_split"},
    needs=SWEEP,
)


@trace_measure(
    name="curvature.trace",
    summary="Trace of the Hessian of the loss in every trainable parameter",
    formula=r"\operatorname{Tr} \nabla^2_\theta L",
    paper="Hochreiter & Schmidhuber 1997; Taleghani et al., Theorem 1 (head); here every layer",
    misleads=(
        "Rescaling the weights changes it at will without changing the function, and a confident "
        "network has a small trace whatever its generalization. Compare only networks of the same "
        "architecture and scale."
    ),
    default=True,
)
def trace(workspace: Workspace) -> Measured:
    """Of each layer: the parameters of that module, including the bias."""
    names = list(workspace.surface.parameters)
    rows = estimate_rows(
        workspace, "trace", {name: name for name in names}, dict.fromkeys(names, 1.0)
    )
    layers = workspace.surface.layers.owned()
    factors = {layer: dict.fromkeys(parameters, 1.0) for layer, parameters in layers.items()}
    return measured_rows(workspace, "curvature.trace", rows, factors)


@trace_measure(
    name="curvature.ggn_trace",
    summary="Trace of the generalized Gauss–Newton matrix, for any network",
    formula=r"\operatorname{mean}_n \operatorname{Tr}(J_n^\top \nabla^2_z \ell_n\, J_n)",
    paper="Schraudolph 2002; Sharpness can be manipulated, eq. of the Gauss–Newton trace",
    misleads=(
        "Equal to the Hessian's trace only if the outputs are piecewise linear in the weights. "
        "Rescaling changes it, as it does the trace."
    ),
)
def ggn_trace(workspace: Workspace) -> Measured:
    """The same sums as for the trace, but claimed for the GGN only, so no certificate is needed."""
    whole = dict.fromkeys(workspace.surface.parameters, 1.0)
    workspace.sweep_to(SWEEP, "trace", whole, workspace.precision.rtol)
    doubts = workspace.run(SWEEP).doubts

    def of(names: list[str], *, judged: bool = False) -> Measurement:
        rows = workspace.sweep_rows("trace", dict.fromkeys(names, 1.0))
        estimate = rows.estimate()
        status, text = Status.OK, columns_text(workspace) if judged else ""
        if not estimate.exact:
            text = probes_text(workspace)
        missed = not estimate.within(workspace.precision.rtol, workspace.precision.confidence)
        if estimate.unknown or (judged and missed):
            status = Status.NOT_CONVERGED
            text = f"{text}; {advice(rows, workspace.precision)}"
        if hidden := hidden_text(workspace, estimate):
            text = f"{text.rstrip('.')}; {hidden}"
        if estimate.exact and (doubtful := [name for name in names if name in doubts]):
            status = Status.UNCONFIRMED
            text = f"not confirmed: {doubtful[0]!r}: {doubts[doubtful[0]]}"
        row = RowEstimate(estimate, "GGN", status, text, workspace.sweep_cost)
        return hessian_measurement(workspace, "curvature.ggn_trace", row)

    layers = {layer: of(names) for layer, names in workspace.surface.layers.owned().items()}
    return Measured(of(list(whole), judged=True), layers)


@measure(
    name="curvature.trace_squared",
    summary="Trace of the squared Hessian: the sum of its squared eigenvalues",
    formula=r"\operatorname{Tr} (\nabla^2_\theta L)^2 = \mathbb{E}_z \|\nabla^2_\theta L\, z\|^2",
    paper="Flatness-Aware Regularization, eq. 1",
    invariant={"unit_permute", "logit_shift", "batch_split"},
    misleads=(
        "A few large eigenvalues decide it. Rescaling changes it. It is an estimate: read its "
        "interval."
    ),
    needs=PRODUCTS,
    found_by="draws",
)
def trace_squared(workspace: Workspace) -> Measured:
    """Of all chosen parameters together; `layers=` restricts it to a block."""
    subspace = subspace_of_network(workspace)  # its cost is that of the eigenvalues
    before = workspace.cost
    square = estimate_trace_squared(workspace, subspace)
    status, text = Status.OK, square.text
    if square.missed:
        status, text = Status.NOT_CONVERGED, f"{text}; {square.missed}"
    row = RowEstimate(square.estimate, "Hessian", status, text, workspace.cost - before)
    return Measured(hessian_measurement(workspace, "curvature.trace_squared", row))


@extreme_measure(
    name="curvature.lambda_max",
    summary="Largest eigenvalue of the Hessian",
    formula=r"\lambda_{\max}\bigl(\nabla^2_\theta L\bigr)",
    paper="Keskar et al. 2017; Petzka et al. 2019, for one layer",
    misleads=(
        "One direction out of millions, and rescaling changes it at will: compare only networks of "
        "the same architecture and scale. It is determined by the optimizer's step size more than "
        "by the data."
    ),
    in_audit=True,
)
def lambda_max(workspace: Workspace) -> Measured:
    """Of all chosen parameters together; `layers=` restricts it to a block."""
    return Measured(_extreme(workspace, "curvature.lambda_max"))


@extreme_measure(
    name="curvature.lambda_min",
    summary="Smallest eigenvalue of the Hessian; negative if the loss still curves downwards",
    formula=r"\lambda_{\min}\bigl(\nabla^2_\theta L\bigr)",
    paper="Sagun et al. 2018, Empirical analysis of the Hessian",
    misleads=(
        "Negative values are normal for trained networks and do not mean that training failed. "
        "Rescaling changes it."
    ),
    direction=None,
)
def lambda_min(workspace: Workspace) -> Measured:
    """Of all chosen parameters together; `layers=` restricts it to a block."""
    return Measured(_extreme(workspace, "curvature.lambda_min"))


def _extreme(workspace: Workspace, name: str) -> Measurement:
    pairs, index, cost = of_network(workspace, name)
    return eigenvalue_measurement(workspace, name, pairs, cost=cost, index=index)
