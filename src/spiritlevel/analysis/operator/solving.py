"""Damped inverse products by conjugate gradients, all columns of a block side by side."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...errors import SpiritlevelError, brief

Multiply = Callable[[Tensor], Tensor]  # a block of columns by the matrix


@dataclasses.dataclass(frozen=True, eq=False)
class Solution:
    """What `CurvatureOperator.solve` found; `residuals` are ‖(A + λ1)x − v‖ / ‖v‖, by column."""

    vectors: Tensor
    residuals: list[float]
    converged: list[bool]
    passes: int  # products of the whole block, each one pass over the data
    text: str  # what to do where it did not converge
    kind: str = ""


def check_solve(damping: Any, rtol: Any, max_passes: Any) -> None:
    """Refuse what cannot be solved for."""
    numbers = {"damping": damping, "rtol": rtol}
    for name, value in numbers.items():
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise SpiritlevelError(
                f"The {name!r} argument of solve must be a number. Got {brief(value)}. "
                "Typical: damping=1e-3, rtol=1e-5."
            )
    if not 0.0 <= damping < math.inf:
        raise SpiritlevelError(
            "The 'damping' argument of solve must be at least 0 and finite, since it is added to "
            f"the diagonal. Got {brief(damping)}. Typical: 1e-3 of the largest eigenvalue."
        )
    if not 0.0 < rtol < 1.0:
        raise SpiritlevelError(
            f"The 'rtol' argument of solve must lie between 0 and 1. Got {brief(rtol)}. Typical: "
            "1e-5."
        )
    if not isinstance(max_passes, int) or isinstance(max_passes, bool) or max_passes < 1:
        raise SpiritlevelError(
            "The 'max_passes' argument of solve must be a whole number of at least 1. "
            f"Got {brief(max_passes)}. Typical: 200."
        )


def conjugate_gradients(
    multiply: Multiply, block: Tensor, damping: float, *, rtol: float, max_products: int
) -> Solution:
    """(A + damping · 1)⁻¹ of every column, with sums in float64.

    >>> diagonal = torch.tensor([1.0, 2.0, 3.0]).double()[:, None]
    >>> found = conjugate_gradients(
    ...     lambda v: diagonal * v, torch.ones(3, 1).double(), 1.0, rtol=1e-12, max_products=9
    ... )
    >>> [round(value, 9) for value in found.vectors[:, 0].tolist()], found.passes
    ([0.5, 0.333333333, 0.25], 4)
    """
    v = block.double()
    sizes = v.norm(dim=0)
    x, residual = torch.zeros_like(v), v.clone()
    direction, squares = residual.clone(), residual.square().sum(dim=0)
    open_, negative, passes = sizes > 0, torch.zeros_like(sizes, dtype=torch.bool), 0
    while bool(open_.any()) and passes < max_products:
        image = multiply(direction.to(block.dtype)).double() + damping * direction
        passes += 1
        bend = (direction * image).sum(dim=0)
        negative |= open_ & (bend <= 0.0)
        open_ = open_ & ~negative
        step = torch.where(open_, squares / bend, 0.0)
        x += step * direction
        residual -= step * image
        before, squares = squares, residual.square().sum(dim=0)
        open_ = open_ & (squares.sqrt() > rtol * sizes)
        direction = residual + torch.where(before > 0, squares / before, 0.0) * direction
    true = v - multiply(x.to(block.dtype)).double() - damping * x
    relative = torch.where(sizes > 0, true.norm(dim=0) / sizes, 0.0)
    # what the recursion says and what a product says part where rounding takes over
    converged = (relative <= 2 * rtol) & ~negative
    return Solution(
        vectors=x.to(block.dtype),
        residuals=relative.tolist(),
        converged=converged.tolist(),
        passes=passes + 1,
        text=_text(converged, negative, damping, rtol),
    )


def _text(converged: Tensor, negative: Tensor, damping: float, rtol: float) -> str:
    if bool(converged.all()):
        return ""
    if bool(negative.any()):
        return (
            f"The matrix plus {damping:g} on its diagonal is not positive definite, so conjugate "
            "gradients stop. Raise 'damping' above minus the smallest eigenvalue (see "
            "spiritlevel.eigenvalues with which='smallest'), or use kind='ggn'."
        )
    return (
        f"The residual is above {rtol:g}. Raise 'max_passes' or 'damping'; in float32 a residual "
        "below about 1e-5 may be out of reach: use model.double()."
    )
