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
from .lanczos_room import BlockGroup, check_room, groups_of, vector_dtype
from .lockstep import solve
from .parameter_space import ParameterSpace
from .products import Products, Request
from .vector_memory import VectorMemory, bytes_of_product

# ‖Hv − λv‖/|λ| at which an eigenvalue counts as converged. The value itself is then at least as
# accurate (its error falls with the square of the residual); half precision cannot do better.
RESIDUALS = {torch.float64: 1e-6, torch.float32: 1e-4}
HALF_RESIDUAL = 1e-2
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
    """The eigenpairs of each block of parameters; blocks share the passes over the data.

    `which` is one for all blocks, or one for each. `keep` says for which blocks to return the whole
    subspace, which is as large as the basis; not where the host keeps it. `starts` are vectors of
    an earlier result, shape (count, size), which save products. `scalings` replace the matrices of
    some blocks. Where memory is limited, as many blocks go side by side as fit.
    """
    ends: Sequence[Which] = [which] * len(spaces) if isinstance(which, str) else which
    warm, kept = starts or [None] * len(spaces), keep or [False] * len(spaces)
    scaled = scalings or [None] * len(spaces)
    for space in spaces:
        check_room(space, num, products.memory)
    found: dict[int, Eigenpairs] = {}
    for group in groups_of(spaces, num, products.memory, kept=any(kept)):
        chosen = [spaces[i] for i in group.members]
        runs = [
            Lanczos(
                _start(spaces[i], num, seed, warm[i], group),
                num=num,
                which=ends[i],
                residual_rtol=residual_tolerance(spaces[i].dtype)
                if residual_rtol is None
                else residual_rtol,
                max_products=max_products,
                max_basis=basis,
                generator=torch.Generator(spaces[i].device).manual_seed(seed),
            )
            for i, basis in zip(group.members, group.bases, strict=True)
        ]
        multiply = _multiplier(products, chosen, operator, [scaled[i] for i in group.members])
        with products.keeping_graph():
            results = solve(runs, multiply)
        for i, run, pairs in zip(group.members, runs, results, strict=True):
            subspace = run.subspace() if kept[i] and not group.on_host else None
            vectors = pairs.vectors.to(spaces[i].device)
            found[i] = dataclasses.replace(pairs, vectors=vectors, subspace=subspace)
        del runs, results  # free the bases before the next ones are made
    return [found[i] for i in range(len(spaces))]


def density_of(
    products: Products,
    space: ParameterSpace,
    *,
    operator: Operator,
    num_vectors: int,
    steps: int,
    seed: int,
) -> SpectralDensity:
    """The spectral density of one block of parameters; its vectors go together if they fit."""
    numbers, dtype = torch.arange(num_vectors, device=space.device), vector_dtype(space)
    parts = []
    for part in numbers.split(density_vectors(space, num_vectors, products.memory)):
        start = random_normals(seed, _STREAM, part, space.size, dtype)
        quadrature = Quadrature(start, steps=steps)
        del start
        with products.keeping_graph():
            parts += solve([quadrature], _multiplier(products, [space], operator))
    return SpectralDensity(
        torch.cat([part.nodes for part in parts]),
        torch.cat([part.weights for part in parts]),
        space.size,
    )


def residual_tolerance(dtype: torch.dtype) -> float:
    """The relative residual that products in this precision can reach."""
    return RESIDUALS.get(dtype, HALF_RESIDUAL)


def density_vectors(space: ParameterSpace, num_vectors: int, memory: VectorMemory) -> int:
    """How many vectors of a density go together: each has two of its recurrence, and a product."""
    if memory.limit is None:
        return num_vectors
    dtype = vector_dtype(space)
    each = space.size * (2 * dtype.itemsize + bytes_of_product(dtype))
    return min(num_vectors, max(1, memory.room(memory.limit) // each))


def _start(
    space: ParameterSpace, num: int, seed: int, warm: Tensor | None, group: BlockGroup
) -> Tensor:
    """Normal vectors, or the vectors of an earlier result with a small normal part added."""
    numbers = torch.arange(num, device=space.device)
    rows = random_normals(seed, _STREAM + 1, numbers, space.size, vector_dtype(space))
    if group.on_host:
        rows = rows.cpu()
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
            rows = rows.to(spaces[i].device)  # the host may keep them
            vectors = rows if scaling is None else scaling.scale * rows
            requests.append(Request(operator, spaces[i], vectors))
        found = dict(zip(directions, products.multiply(requests), strict=True))
        for i, rows in directions.items():
            scaling = by_block[i]
            if scaling is not None:
                found[i] = scaling.product(rows.to(found[i].device), found[i])
        return found

    return multiply
