"""The largest value of a quadratic in a ball, from its eigenvalues."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_HALVINGS = 2000  # more than any two floats can be halved: the loop ends when none lies between


def peak_in_ball(B: Tensor, c: Tensor, radius: float, *, inside: bool = True) -> Tensor:
    """The z with ‖z‖ ≤ radius that makes cᵀz + ½ zᵀBz largest; B symmetric, in float64.

    It is (λ − B)⁻¹c with the λ ≥ λ_max that puts it on the sphere, or, if the quadratic is concave
    and its maximum lies inside the ball, that maximum. With `inside=False` only points on the
    sphere are considered. λ is measured from λ_max, so that nothing cancels where c has almost no
    component along the top eigenvector.

    >>> B, zero = torch.diag(torch.tensor([1.0, -9.0]).double()), torch.zeros(2).double()
    >>> peak_in_ball(B, zero, 2.0).abs().tolist()      # along the largest eigenvalue
    [2.0, 0.0]
    >>> peak_in_ball(-4 * torch.eye(2).double(), torch.ones(2).double(), 2.0).tolist()
    [0.25, 0.25]
    """
    values, vectors = torch.linalg.eigh(B)
    below = (values[-1] - values).tolist()  # ≥ 0, and 0 for the top
    along = (vectors.T @ c).tolist()

    def at(shift: float) -> list[float]:
        return [_ratio(a, gap + shift) for a, gap in zip(along, below, strict=True)]

    low = max(-float(values[-1]), 0.0) if inside else 0.0  # λ = 0, or λ_max if that is larger
    z = at(low)
    if math.hypot(*z) <= radius:
        if low == 0.0:  # c has no part along the top eigenvector: the rest of the radius goes there
            z = [part if gap > 0 else 0.0 for part, gap in zip(z, below, strict=True)]
            z[-1] = math.sqrt(max(radius**2 - math.hypot(*z) ** 2, 0.0))
        return vectors @ c.new_tensor(z)
    high = low + math.hypot(*along) / radius
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high) if low > 0 else high / 1024
        if not low < middle < high:
            middle = (low + high) / 2
        if not low < middle < high:
            break
        if math.hypot(*at(middle)) > radius:
            low = middle
        else:
            high = middle
    z = at(high)
    return vectors @ c.new_tensor(z) * (radius / math.hypot(*z))


def _ratio(a: float, b: float) -> float:
    if b > 0:
        return a / b
    return math.inf if a else 0.0
