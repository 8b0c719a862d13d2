"""Curvature: trace, Frobenius norm and extreme eigenvalues of the Hessian, and the GGN's trace."""

from __future__ import annotations

from .._core import Measurement, Status
from ..estimators.exact import Needs
from ..estimators.hessian import Found, columns_text, precise, probes_text
from ..estimators.trace_squared import trace_squared as estimate_trace_squared
from ..estimators.work import Work
from ._eigenvalues import known_of_network, of_network
from ._registry import Measured, measure
from ._results import eigenvalue_measurement, hessian_measurement

SWEEP = Needs(sweep=True)
PRODUCTS = Needs(products=True)


@measure(
    name="curvature.trace",
    summary="Trace of the Hessian of the loss in every trainable parameter",
    formula=r"\operatorname{Tr} \nabla^2_\theta L",
    paper="Hochreiter & Schmidhuber 1997; Taleghani et al., Theorem 1 (head); here every layer",
    invariant={"unit_permute", "batch_split"},
    misleads=(
        "Rescaling weights changes it at will without changing the function; a confident network "
        "has a small trace whatever its generalization. Compare only networks of one architecture "
        "and scale."
    ),
    needs=SWEEP,
)
def trace(work: Work) -> Measured:
    """Per layer: the parameters of that module, bias included."""
    names = list(work.surface.parameters)
    rows = precise(work, "trace", {name: name for name in names}, dict.fromkeys(names, 1.0))
    layers = {
        layer: hessian_measurement(work, "curvature.trace", rows.found(dict.fromkeys(own, 1.0)))
        for layer, own in work.surface.layers().items()
    }
    return Measured(hessian_measurement(work, "curvature.trace", rows.found()), layers)


@measure(
    name="curvature.ggn_trace",
    summary="Trace of the generalized Gauss–Newton matrix, for any network",
    formula=r"\operatorname{mean}_n \operatorname{Tr}(J_n^\top \nabla^2_z \ell_n\, J_n)",
    paper="Schraudolph 2002; Sharpness can be manipulated, eq. of the Gauss–Newton trace",
    invariant={"unit_permute", "batch_split"},
    misleads=(
        "Equal to the Hessian's trace only where the outputs are piecewise linear in the weights; "
        "moves under rescaling like the trace."
    ),
    needs=SWEEP,
    default=False,
)
def ggn_trace(work: Work) -> Measured:
    """The same sums as the trace, claimed for the GGN alone: no certificate needed."""
    whole = dict.fromkeys(work.surface.parameters, 1.0)
    work.sweep_to(SWEEP, "trace", whole, work.precision.rtol)

    def of(names: list[str], *, judged: bool = False) -> Measurement:
        estimate = work.sweep_estimate("trace", dict.fromkeys(names, 1.0))
        status, text = Status.OK, columns_text(work) if judged else ""
        if estimate.variance:
            text = probes_text(work)
        if judged and not estimate.within(work.precision.rtol, work.precision.confidence):
            status = Status.NOT_CONVERGED
            text = f"{text}; {work.sweep_budget('trace', whole)}"
        found = Found(estimate, "GGN", status, text, work.sweep_cost)
        return hessian_measurement(work, "curvature.ggn_trace", found)

    layers = {layer: of(names) for layer, names in work.surface.layers().items()}
    return Measured(of(list(whole), judged=True), layers)


@measure(
    name="curvature.trace_squared",
    summary="Trace of the squared Hessian: the sum of its squared eigenvalues",
    formula=r"\operatorname{Tr} (\nabla^2_\theta L)^2 = \mathbb{E}_z \|\nabla^2_\theta L\, z\|^2",
    paper="Flatness-Aware Regularization, eq. 1",
    invariant={"unit_permute", "batch_split"},
    misleads=(
        "A few large eigenvalues decide it. Moves under rescaling. An estimate: read its interval."
    ),
    needs=PRODUCTS,
    found_by="draws",
    default=False,
)
def trace_squared(work: Work) -> Measured:
    """Of all chosen parameters together; `layers=` restricts it to a block."""
    known = known_of_network(work)  # its cost is that of the eigenvalues
    before = work.cost
    square = estimate_trace_squared(work, known)
    status, text = Status.OK, square.text
    if square.enough is not None:
        status = Status.NOT_CONVERGED
        advice = f"max_passes={square.enough} would have sufficed"
        text = "; ".join(filter(None, [text, square.reason, f"{advice}."]))
    found = Found(square.estimate, "Hessian", status, text, work.cost - before)
    return Measured(hessian_measurement(work, "curvature.trace_squared", found))


@measure(
    name="curvature.lambda_max",
    summary="Largest eigenvalue of the Hessian",
    formula=r"\lambda_{\max}\bigl(\nabla^2_\theta L\bigr)",
    paper="Keskar et al. 2017; Petzka et al. 2019, for one layer",
    invariant={"unit_permute", "batch_split"},
    misleads=(
        "One direction out of millions, and rescaling moves it at will: only networks of one "
        "architecture and scale compare. Set by the optimizer's step size more than by the data."
    ),
    needs=PRODUCTS,
    found_by="products",
    default=False,
)
def lambda_max(work: Work) -> Measured:
    """Of all chosen parameters together; `layers=` restricts it to a block."""
    return Measured(_extreme(work, "curvature.lambda_max"))


@measure(
    name="curvature.lambda_min",
    summary="Smallest eigenvalue of the Hessian; negative where the loss still curves downwards",
    formula=r"\lambda_{\min}\bigl(\nabla^2_\theta L\bigr)",
    paper="Sagun et al. 2018, Empirical analysis of the Hessian",
    invariant={"unit_permute", "batch_split"},
    misleads=(
        "Negative is normal for trained networks and does not mean that training failed. Moves "
        "under rescaling."
    ),
    direction=None,
    needs=PRODUCTS,
    found_by="products",
    default=False,
)
def lambda_min(work: Work) -> Measured:
    """Of all chosen parameters together; `layers=` restricts it to a block."""
    return Measured(_extreme(work, "curvature.lambda_min"))


def _extreme(work: Work, name: str) -> Measurement:
    pairs, index, cost = of_network(work, name)
    return eigenvalue_measurement(work, name, pairs, cost=cost, index=index)
