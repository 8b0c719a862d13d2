"""Measurements of Hessian quantities: certified, estimated, or named as what they are."""

from __future__ import annotations

import math

from ..engine.row_estimator import RowEstimate
from ..engine.weight_space.eigenvalues import residual_tolerance
from ..engine.weight_space.lanczos import Eigenpairs
from ..engine.workspace import Workspace
from ..records import Cost, Measurement, Status

ROUND_OFF = 1e-7  # of a value: below the error that float32 weights and data bring along
PACE_KNOWN = 0.1  # of a value: a residual below it shows at what pace it falls


def hessian_measurement(workspace: Workspace, name: str, found: RowEstimate) -> Measurement:
    """With both errors, and the interval of the one that probes leave."""
    estimate = found.estimate
    common = {
        "quantity": found.quantity,
        "data_stderr": estimate.data_stderr,
        "status": found.status,
        "text": found.text,
        "cost": found.cost,
        "settings": workspace.settings(),
    }
    if not estimate.variance:
        return Measurement(name, estimate.value, exact=found.exact, **common)  # type: ignore[arg-type]
    margin = estimate.half_width(workspace.precision.confidence)
    return Measurement(
        name,
        estimate.value,
        exact=False,
        stderr=estimate.stderr,
        interval=(estimate.value - margin, estimate.value + margin),
        **common,  # type: ignore[arg-type]
    )


def eigenvalue_measurement(
    workspace: Workspace,
    name: str,
    found: Eigenpairs,
    *,
    cost: Cost,
    factor: float = 1.0,
    index: int = 0,
    rtol: float | None = None,
) -> Measurement:
    """A multiple of an eigenvalue, with the residual that some eigenvalue lies within.

    `rtol` is the relative residual that was asked for; None: that of products over the data.
    """
    value, residual = factor * float(found.values[index]), factor * float(found.residuals[index])
    converged = bool(found.converged[index])
    text = ""
    if not converged:
        asked = residual_tolerance(workspace.surface.dtype) if rtol is None else rtol
        text = (
            f"residual {residual:.2g} after {found.products} products: an eigenvalue lies within "
            f"it. {_budget(found, index, asked)}"
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
        settings=workspace.settings(),
    )


def _budget(found: Eigenpairs, index: int, rtol: float) -> str:
    """Products that would do at the pace so far.

    The residual falls by a constant factor a product, and faster once the vector is nearly found.
    """
    value, residual = abs(float(found.values[index])), float(found.residuals[index])
    if residual >= PACE_KNOWN * value:
        return (
            "It is too large yet for a pace, and so for a budget, to be told: try "
            f"max_passes={4 * found.products}."
        )
    enough = math.ceil(found.products * math.log(rtol) / math.log(residual / value))
    return f"At this pace max_passes={max(enough, found.products + 1)} would have sufficed."
