"""Measurements made from estimates: certified, estimated, or named as what they are."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from ..engine.estimate import Estimate
from ..engine.refine import is_accepted, would_have_sufficed
from ..engine.row_estimator import RowEstimate, RowEstimator
from ..engine.sweep.sums import Factors
from ..engine.weight_space.eigenvalues import VALUE_RTOL
from ..engine.weight_space.lanczos import Eigenpairs
from ..engine.workspace import Workspace
from ..records.measurements import Cost, Measurement, Status
from .registry import Measured

ROUND_OFF = 1e-7  # of a value: below the error that float32 weights and data bring along
RATE_VISIBLE = 0.1  # of a value: only a residual below it shows how fast it falls


LOST_UNITS = 100  # in the last place, in sums over a network's gradients


def hessian_measurement(workspace: Workspace, name: str, row: RowEstimate) -> Measurement:
    """A value with its sampling error, and with the interval of the probes if there were any."""
    estimate = row.estimate
    round_off = LOST_UNITS * torch.finfo(workspace.surface.dtype).eps
    return Measurement(
        name,
        estimate.value,
        exact=row.exact,
        quantity=row.quantity,
        data_stderr=estimate.data_stderr,
        status=row.status,
        text=row.text,
        cost=row.cost,
        **estimate.errors(workspace.precision.confidence, round_off=round_off),
    )


def estimate_measurement(
    workspace: Workspace,
    name: str,
    estimate: Estimate,
    *,
    text: str,
    missed: Callable[[], str],
    cost: Cost,
    judged: bool = True,
    residual: float | None = None,
) -> Measurement:
    """An estimate with its errors and, where these are wider than asked, `missed` as the text.

    Where it is not `judged`, such as for one layer of many, any interval will do.
    """
    asked = workspace.precision
    wide = estimate.unknown or (judged and not estimate.within(asked.rtol, asked.confidence))
    return Measurement(
        name,
        estimate.value,
        exact=estimate.exact,
        residual=residual,
        data_stderr=estimate.data_stderr,
        status=Status.NOT_CONVERGED if wide and not is_accepted(estimate, asked) else Status.OK,
        text=missed() if wide else text,
        cost=cost,
        **estimate.errors(asked.confidence),
    )


def measured_rows(
    workspace: Workspace, name: str, rows: RowEstimator, layers: Mapping[str, Factors]
) -> Measured:
    """The sum of estimated rows, and of each layer the sum by its factors."""
    return Measured(
        hessian_measurement(workspace, name, rows.result()),
        {
            layer: hessian_measurement(workspace, name, rows.result(factors))
            for layer, factors in layers.items()
        },
    )


def largest_layer(
    workspace: Workspace, name: str, layers: dict[str, Measurement], for_more: str = ""
) -> Measurement:
    """The maximum over layers; its sampling error is not that of a mean, so none is claimed.

    `for_more` says what makes estimates of single layers more precise.
    """
    top = max(layers, key=lambda layer: layers[layer].value)
    largest = layers[top]
    rivals = [m for layer, m in layers.items() if layer != top and _reach(m) > largest.value]
    text = "; ".join(part for part in (f"layer {top!r}", largest.text) if part)
    largest = dataclasses.replace(largest, name=name, data_stderr=None, text=text)
    if largest.exact and rivals:  # its value is known, but not whether it is the largest
        rival = max(rivals, key=_reach)
        largest = dataclasses.replace(
            largest,
            exact=False,
            quantity=rival.quantity,
            status=rival.status,
            stderr=rival.stderr,
            residual=rival.residual,
            interval=None if rival.interval is None else (largest.value, _reach(rival)),
            text=f"{text}, itself exact; another may be larger: {rival.text}",
        )
    if largest.status is Status.OK and largest.interval is not None:
        low, high = largest.interval
        if high - low > 2 * workspace.precision.rtol * abs(largest.value):
            text = f"{largest.text.rstrip('.')}; wider than 'rtol' asks for: {for_more}."
            largest = dataclasses.replace(largest, status=Status.NOT_CONVERGED, text=text)
    return largest


def _reach(m: Measurement) -> float:
    """How large the true value may well be."""
    if m.interval is not None:
        return m.interval[1]
    if not m.exact and m.residual is None:
        return math.inf  # of another matrix, or with an unknown error
    return m.value + (m.residual or 0.0)


def eigenvalue_measurement(
    workspace: Workspace,
    name: str,
    pairs: Eigenpairs,
    *,
    cost: Cost,
    factor: float = 1.0,
    index: int = 0,
    residual_rtol: float | None = None,
) -> Measurement:
    """A multiple of an eigenvalue, with the error that its confidence leaves.

    `residual_rtol` is the relative residual asked for; None: the error that was asked for.
    """
    value, error = factor * float(pairs.values[index]), factor * float(pairs.errors[index])
    converged = bool(pairs.converged[index])
    exact = converged and error <= ROUND_OFF * abs(value)
    asked = workspace.precision
    text = ""
    if not converged:
        short, rtol = pairs.errors, min(VALUE_RTOL, asked.rtol)
        if residual_rtol is not None:
            short, rtol = pairs.residuals, residual_rtol
        text = (
            f"residual {factor * float(pairs.residuals[index]):.2g} after {pairs.products} "
            "products: an eigenvalue lies within this distance. "
            f"{_budget(pairs, index, short, rtol)}"
        )
    elif not exact:
        text = f"± with {100 * asked.confidence:.3g} % confidence over random starts"
    text = "; ".join(note for note in (workspace.product_remark, text) if note)
    return Measurement(
        name,
        value,
        exact=exact,
        quantity="Hessian",
        residual=error,
        status=Status.OK if converged else Status.NOT_CONVERGED,
        text=text,
        cost=cost,
    )


def _budget(pairs: Eigenpairs, index: int, short: Tensor, rtol: float) -> str:
    """How many products would be enough at the rate of convergence so far.

    Error and residual fall by a constant factor a product, and faster once the vector is nearly
    found. `short` is the one that is to be small, relative to the value.
    """
    value, left = abs(float(pairs.values[index])), float(short[index])
    if not left < RATE_VISIBLE * value:
        return (
            "It is still too large to tell how many products would be enough: try "
            f"max_passes={4 * pairs.products}."
        )
    enough = math.ceil(pairs.products * math.log(rtol) / math.log(left / value))
    return f"At this rate {would_have_sufficed(max(enough, pairs.products + 1))}"
