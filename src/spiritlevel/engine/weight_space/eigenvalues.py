"""Eigenvalues of the Hessian, the GGN and their blocks, by Lanczos on products over the data."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ...math.normals import random_normals
from .chunk_products import Operator
from .density import Quadrature, SpectralDensity
from .lanczos import Eigenpairs, Lanczos, Which
from .lockstep import solve
from .parameter_space import ParameterSpace
from .products import Products, Request

# ‖Hv − λv‖/|λ| at which an eigenvalue counts as converged. The value itself is then at least as
# accurate (its error falls with the square of the residual); half precision cannot do better.
RESIDUALS = {torch.float64: 1e-6, torch.float32: 1e-4}
HALF_RESIDUAL = 1e-2
BASIS_BYTES = 1 << 30  # Lanczos vectors kept before the basis is compressed
MIN_BASIS, MAX_BASIS = 8, 120
MIXED = 0.01  # length of the random part that is added to a warm start
_STREAM = 2000  # of random numbers, different from those of probes


@dataclasses.dataclass(frozen=True, eq=False)
class Scaling:
    """Replaces a matrix H by S(H + D)S, with diagonal S and D."""

    scale: Tensor  # the diagonal of S, shape: (size,)
    shift: Tensor  # the diagonal of D, shape: (size,)

    def product(self, rows: Tensor, product: Tensor) -> Tensor:
        """S(H + D)S times rows, given H times `scale` times rows."""
        return self.scale * (product + self.shift * self.scale * rows)


def eigenpairs_of(
    products: Products,
    spaces: Sequence[ParameterSpace],
    *,
    operator: Operator,
    num: int = 1,
    which: Which | Sequence[Which] = "largest",
    seed: int = 0,
    max_products: int = 200,
    residual_rtol: float | None = None,
    starts: Sequence[Tensor | None] | None = None,
    keep: Sequence[bool] | None = None,
    scalings: Sequence[Scaling | None] | None = None,
) -> list[Eigenpairs]:
    """The eigenpairs of each block of parameters; all blocks share the passes over the data.

    `which` is one for all blocks, or one for each. `keep` says for which blocks to return the whole
    subspace, which is as large as the basis. `starts` are vectors of an earlier result, shape
    (count, size), which save products. `scalings` replace the matrices of some blocks.
    """
    ends: Sequence[Which] = [which] * len(spaces) if isinstance(which, str) else which
    runs = [
        Lanczos(
            _start(space, num, seed, warm),
            num=num,
            which=end,
            residual_rtol=residual_tolerance(space.dtype)
            if residual_rtol is None
            else residual_rtol,
            max_products=max_products,
            max_basis=basis_size(space, num),
            generator=torch.Generator(space.device).manual_seed(seed),
        )
        for space, end, warm in zip(spaces, ends, starts or [None] * len(spaces), strict=True)
    ]
    with products.keeping_graph():
        results = solve(runs, _multiplier(products, spaces, operator, scalings))
    return [
        dataclasses.replace(pairs, subspace=run.subspace()) if keep_subspace else pairs
        for pairs, run, keep_subspace in zip(
            results, runs, keep or [False] * len(runs), strict=True
        )
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
    """The spectral density of one block of parameters."""
    numbers = torch.arange(num_vectors, device=space.device)
    start = random_normals(seed, _STREAM, numbers, space.size, _vector_dtype(space))
    quadrature = Quadrature(start, steps=steps)
    with products.keeping_graph():
        (density,) = solve([quadrature], _multiplier(products, [space], operator))
    return density


def residual_tolerance(dtype: torch.dtype) -> float:
    """The relative residual that products in this precision can reach."""
    return RESIDUALS.get(dtype, HALF_RESIDUAL)


def basis_size(space: ParameterSpace, num: int) -> int:
    """How many Lanczos vectors to keep: as many as fit, and enough to converge."""
    fitting = BASIS_BYTES // (4 * max(space.size, 1))
    return max(MIN_BASIS, 4 * num, min(MAX_BASIS, fitting))


def _vector_dtype(space: ParameterSpace) -> torch.dtype:
    """At least float32: Lanczos vectors in half precision would not stay orthogonal."""
    return torch.promote_types(space.dtype, torch.float32)


def _start(space: ParameterSpace, num: int, seed: int, warm: Tensor | None) -> Tensor:
    """Normal vectors, or the vectors of an earlier result with a small normal part added."""
    numbers = torch.arange(num, device=space.device)
    rows = random_normals(seed, _STREAM + 1, numbers, space.size, _vector_dtype(space))
    if warm is None:
        return rows
    rows = rows / space.size**0.5
    count = min(num, len(warm))
    # a random part, so that an eigenvector orthogonal to the old ones is found as well
    rows[:count] = warm[:count].to(rows) + MIXED * rows[:count]
    return rows


def _multiplier(
    products: Products,
    spaces: Sequence[ParameterSpace],
    operator: Operator,
    scalings: Sequence[Scaling | None] | None = None,
) -> Callable[[dict[int, Tensor]], dict[int, Tensor]]:
    by_block = scalings or [None] * len(spaces)

    def multiply(directions: dict[int, Tensor]) -> dict[int, Tensor]:
        requests = []
        for i, rows in directions.items():
            scaling = by_block[i]
            vectors = rows if scaling is None else scaling.scale * rows
            requests.append(Request(operator, spaces[i], vectors))
        found = dict(zip(directions, products.multiply(requests), strict=True))
        for i, rows in directions.items():
            scaling = by_block[i]
            if scaling is not None:
                found[i] = scaling.product(rows, found[i])
        return found

    return multiply
