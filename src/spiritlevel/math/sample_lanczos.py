"""Largest eigenvalues of many small symmetric matrices at once, from their products alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor

# Steps before a small residual counts: a start may have so little of the largest eigenvector that
# the residual of another one is small at first.
LEAST_STEPS = 4

Multiply = Callable[[Tensor], Tensor]  # row n of (N, C) times the matrix of sample n


@dataclasses.dataclass(frozen=True)
class LargestEigenvalues:
    """One per sample; some eigenvalue of its matrix lies within the residual of each value."""

    values: Tensor  # shape: (N,)
    residuals: Tensor  # shape: (N,)
    steps: int


def largest_eigenvalues(
    multiply: Multiply, start: Tensor, *, max_steps: int, enough: Callable[[Tensor, Tensor], bool]
) -> LargestEigenvalues:
    """Lanczos for positive semidefinite matrices, with full reorthogonalization.

    `start` should be normal: random signs may be an eigenvector of a small matrix, and the largest
    eigenvalue is then never seen. `enough(values, residuals)` decides after each step whether to
    stop. A sample whose Krylov space is exhausted continues with zero vectors: they add eigenvalues
    0, which are never the largest.

    >>> matrices = torch.diag_embed(torch.tensor([[1.0, 5.0], [3.0, 2.0]]).double())
    >>> times = lambda v: (matrices @ v[:, :, None]).squeeze(2)
    >>> largest = largest_eigenvalues(
    ...     times, torch.ones(2, 2).double(), max_steps=2, enough=lambda v, r: False
    ... )
    >>> largest.values.tolist()
    [5.0, 3.0]
    """
    start = start.double()
    num_samples, size = start.shape
    steps = min(max_steps, size)
    basis = start.new_zeros(num_samples, steps + 1, size)
    tridiagonal = start.new_zeros(num_samples, steps + 1, steps + 1)
    basis[:, 0] = start / start.norm(dim=1, keepdim=True)
    values = residuals = start.new_zeros(num_samples)
    step = 0
    for step in range(1, steps + 1):
        image = multiply(basis[:, step - 1]).double()
        scale = image.norm(dim=1)
        tridiagonal[:, step - 1, step - 1] = (image * basis[:, step - 1]).sum(dim=1)
        for _ in range(2):  # the second time removes what round-off left the first time
            before = basis[:, :step]
            image = image - (before.mT @ (before @ image[:, :, None])).squeeze(2)
        beta = image.norm(dim=1)
        alive = beta > 1e-14 * scale
        beta = torch.where(alive, beta, torch.zeros_like(beta))
        inverse = torch.where(alive, 1.0 / torch.where(alive, beta, 1.0), 0.0)
        basis[:, step] = image * inverse[:, None]
        ritz_values, vectors = torch.linalg.eigh(tridiagonal[:, :step, :step])
        values = ritz_values[:, -1].clamp(min=0.0)
        residuals = beta * vectors[:, -1, -1].abs()
        if step >= min(LEAST_STEPS, steps) and enough(values, residuals):
            break
        tridiagonal[:, step, step - 1] = tridiagonal[:, step - 1, step] = beta
    return LargestEigenvalues(values, residuals, step)
