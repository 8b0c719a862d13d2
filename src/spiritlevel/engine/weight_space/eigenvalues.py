"""Eigenvalues of the Hessian, the GGN and their blocks, by Lanczos on products over the data."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ...math.signs import random_signs
from .density import Quadrature, SpectralDensity
from .lanczos import Eigenpairs, Lanczos, Which, solve
from .parameter_space import ParameterSpace
from .products import Operator, Products, Request

# ‖Hv − λv‖/|λ| at which an eigenvalue is taken as found. The value itself is then as good or better
# (its error falls with the square of the residual); half precision has no more digits to give.
RESIDUALS = {torch.float64: 1e-6, torch.float32: 1e-4}
HALF_RESIDUAL = 1e-2
BASIS_BYTES = 1 << 30  # Lanczos vectors kept before the basis is compressed
MIN_BASIS, MAX_BASIS = 8, 120
MIXED = 0.01  # length of the random part of a warm start
_STREAM = 2000  # of random signs: apart from those of probes


def eigenpairs_of(
    products: Products,
    spaces: Sequence[ParameterSpace],
    *,
    operator: Operator,
    num: int = 1,
    which: Which | Sequence[Which] = "largest",
    seed: int = 0,
    max_products: int = 200,
    rtol: float | None = None,
    starts: Sequence[Tensor | None] | None = None,
    keep: Sequence[bool] | None = None,
) -> list[Eigenpairs]:
    """Of each block of parameters; all blocks share their passes over the data.

    `which` is one for all blocks, or one for each. `keep` says of which blocks the whole subspace
    is wanted, which is as large as the basis.
    `starts` are vectors of an earlier result, shape (count, size): they save products.
    """
    ends: Sequence[Which] = [which] * len(spaces) if isinstance(which, str) else which
    runs = [
        Lanczos(
            _start(space, num, seed, warm),
            num=num,
            which=end,
            rtol=residual_tolerance(space.dtype) if rtol is None else rtol,
            max_products=max_products,
            max_basis=basis_size(space, num),
            generator=torch.Generator(space.device).manual_seed(seed),
        )
        for space, end, warm in zip(spaces, ends, starts or [None] * len(spaces), strict=True)
    ]
    found = solve(runs, _multiplier(products, spaces, operator))
    return [
        dataclasses.replace(pairs, subspace=run.subspace()) if kept else pairs
        for pairs, run, kept in zip(found, runs, keep or [False] * len(runs), strict=True)
    ]


def density_of(
    products: Products,
    space: ParameterSpace,
    *,
    operator: Operator,
    num_vectors: int,
    steps: int,
    seed: int,
) -> SpectralDensity:
    """The spectral density of one block."""
    numbers = torch.arange(num_vectors, device=space.device)
    start = random_signs(seed, _STREAM, numbers, space.size, _vector_dtype(space))
    (found,) = solve([Quadrature(start, steps=steps)], _multiplier(products, [space], operator))
    return found


def residual_tolerance(dtype: torch.dtype) -> float:
    """Relative residual that products in this precision can reach."""
    return RESIDUALS.get(dtype, HALF_RESIDUAL)


def basis_size(space: ParameterSpace, num: int) -> int:
    """Lanczos vectors to keep: what fits, and enough to converge."""
    held = BASIS_BYTES // (4 * max(space.size, 1))
    return max(MIN_BASIS, 4 * num, min(MAX_BASIS, held))


def _vector_dtype(space: ParameterSpace) -> torch.dtype:
    """Lanczos vectors are float32 at least: in half precision they would not stay orthogonal."""
    return torch.promote_types(space.dtype, torch.float32)


def _start(space: ParameterSpace, num: int, seed: int, warm: Tensor | None) -> Tensor:
    """Random signs, or the vectors of an earlier result with a few of them mixed in."""
    numbers = torch.arange(num, device=space.device)
    rows = random_signs(seed, _STREAM + 1, numbers, space.size, _vector_dtype(space))
    if warm is None:
        return rows
    rows = rows / space.size**0.5
    count = min(num, len(warm))
    # a little of everything: an eigenvector that the old ones are orthogonal to is found as well
    rows[:count] = warm[:count].to(rows) + MIXED * rows[:count]
    return rows


def _multiplier(
    products: Products, spaces: Sequence[ParameterSpace], operator: Operator
) -> Callable[[dict[int, Tensor]], dict[int, Tensor]]:
    def multiply(directions: dict[int, Tensor]) -> dict[int, Tensor]:
        requests = [Request(operator, spaces[i], rows) for i, rows in directions.items()]
        return dict(zip(directions, products.multiply(requests), strict=True))

    return multiply
