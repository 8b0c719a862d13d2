"""Curvature: the trace of the Hessian and of its Gauss–Newton part, whole and per layer."""

from __future__ import annotations

from .._core import Measurement
from ..estimators.exact import Needs
from ..estimators.work import Work
from ._registry import Measured, measure
from ._results import hessian_measurement

SWEEP = Needs(sweep=True)


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
    run = work.run(SWEEP)

    def of(names: list[str]) -> Measurement:
        mean, error = run.sweep.trace.mean(names), run.sweep.trace.stderr(names)
        return hessian_measurement(work, run, "curvature.trace", mean, error, names)

    layers = {layer: of(names) for layer, names in work.surface.layers().items()}
    return Measured(of(list(work.surface.parameters)), layers)


@measure(
    name="curvature.ggn_trace",
    summary="Trace of the generalized Gauss–Newton matrix, exact for any network",
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
    run = work.run(SWEEP)

    def of(names: list[str]) -> Measurement:
        return Measurement(
            "curvature.ggn_trace",
            run.sweep.trace.mean(names),
            exact=True,
            quantity="GGN",
            data_stderr=run.sweep.trace.stderr(names),
            cost=run.cost,
            settings=work.settings(),
        )

    layers = {layer: of(names) for layer, names in work.surface.layers().items()}
    return Measured(of(list(work.surface.parameters)), layers)
