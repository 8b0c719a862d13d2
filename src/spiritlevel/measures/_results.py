"""Measurements of Hessian quantities: certified, estimated, or named as what they are."""

from __future__ import annotations

from .._core import Cost, Measurement, Status
from ..estimators.hessian import Found
from ..estimators.lanczos import Eigenpairs
from ..estimators.work import Work

ROUND_OFF = 1e-7  # of a value: below the error that float32 weights and data bring along


def hessian_measurement(work: Work, name: str, found: Found) -> Measurement:
    """With both errors, and the interval of the one that probes leave."""
    estimate = found.estimate
    common = {
        "quantity": found.quantity,
        "data_stderr": estimate.data_stderr,
        "status": found.status,
        "text": found.text,
        "cost": found.cost,
        "settings": work.settings(),
    }
    if not estimate.variance:
        return Measurement(name, estimate.value, exact=found.exact, **common)  # type: ignore[arg-type]
    margin = estimate.half_width(work.precision.confidence)
    return Measurement(
        name,
        estimate.value,
        exact=False,
        stderr=estimate.stderr,
        interval=(estimate.value - margin, estimate.value + margin),
        **common,  # type: ignore[arg-type]
    )


def eigenvalue_measurement(
    work: Work, name: str, found: Eigenpairs, *, cost: Cost, factor: float = 1.0, index: int = 0
) -> Measurement:
    """A multiple of an eigenvalue, with the residual that some eigenvalue lies within."""
    value, residual = factor * float(found.values[index]), factor * float(found.residuals[index])
    converged = bool(found.converged[index])
    text = ""
    if not converged:
        text = (
            f"residual {residual:.2g} after {found.products} products: an eigenvalue lies within "
            f"it. Try max_passes={2 * work.precision.max_passes}."
        )
    return Measurement(
        name,
        value,
        exact=converged and residual <= ROUND_OFF * abs(value),
        quantity="Hessian",
        residual=residual,
        status=Status.OK if converged else Status.NOT_CONVERGED,
        text=text,
        cost=cost,
        settings=work.settings(),
    )
