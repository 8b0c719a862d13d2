"""The largest eigenvalue of a symmetric operator by Lanczos with full reorthogonalization."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor


@dataclasses.dataclass(frozen=True)
class Eigenvalue:
    """A Ritz value and ‖Hv − λv‖ of its vector, which bounds the distance to an eigenvalue."""

    value: float
    residual: float
    products: int
    vector: Tensor


def largest_eigenvalue(
    product: Callable[[Tensor], Tensor],
    size: int,
    *,
    generator: torch.Generator,
    device: torch.device,
    rtol: float = 1e-10,
    max_products: int = 300,
) -> Eigenvalue:
    """Iterate until the residual is below `rtol` times the value, in float64.

    >>> diagonal = torch.tensor([5.0, 1.0, -7.0]).double()
    >>> found = largest_eigenvalue(
    ...     lambda v: diagonal * v, 3, generator=torch.Generator().manual_seed(0),
    ...     device=torch.device("cpu"),
    ... )
    >>> round(found.value, 12)
    5.0
    """
    start = torch.randn(size, generator=generator, dtype=torch.float64).to(device)
    basis = [start / start.norm()]
    diagonal: list[Tensor] = []
    off_diagonal: list[Tensor] = []
    while True:
        w = product(basis[-1])
        diagonal.append(w @ basis[-1])
        stack = torch.stack(basis)
        for _ in range(2):  # once is not enough: the second round removes what the first left
            w = w - stack.T @ (stack @ w)
        beta = w.norm()
        T = torch.diag(torch.stack(diagonal))
        if off_diagonal:
            side = torch.stack(off_diagonal)
            T = T + torch.diag(side, 1) + torch.diag(side, -1)
        values, vectors = torch.linalg.eigh(T)
        residual = float(beta * vectors[-1, -1].abs())
        value = float(values[-1])
        done = residual <= rtol * abs(value) or len(basis) >= min(size, max_products)
        if done or float(beta) <= 1e-300:
            return Eigenvalue(value, residual, len(basis), stack.T @ vectors[:, -1])
        off_diagonal.append(beta)
        basis.append(w / beta)
