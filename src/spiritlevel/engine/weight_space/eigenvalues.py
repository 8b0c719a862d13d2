"""Eigenvalues of the Hessian, the GGN and their blocks, by Lanczos on products over the data.

Without a limit of the memory as many vectors are kept as make a run short. With one, the basis is
compressed earlier, and blocks of parameters that do not fit together run one after another. Below
the least basis with which a run converges, a GPU leaves the basis to the host; a CPU has nowhere to
go.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ...ground.errors import SpiritlevelError
from ...math.signs import random_normals
from ..memory import LEAST, VectorMemory, bytes_of_product
from .chunk_products import Images, Operator
from .density import Quadrature, SpectralDensity
from .difference_residuals import with_product_errors
from .lanczos import Eigenpairs, Lanczos, Which
from .lockstep import solve
from .parameter_space import ParameterSpace
from .products import AbstractProducts, Request
from .ritz_errors import CONFIDENCE

BASIS_BYTES = 1 << 30  # Lanczos vectors kept before the basis is compressed
MIN_BASIS, MAX_BASIS = 8, 120
# ‖Hv − λv‖/|λ| at which an eigenvalue counts as converged. The value itself is then at least as
# accurate (its error falls with the square of the residual); half precision cannot do better.
RESIDUALS = {torch.float64: 1e-6, torch.float32: 1e-4}
HALF_RESIDUAL = 1e-2
# ‖error‖/|λ| at which the value itself is close enough.
VALUE_RTOL = 0.01
MIXED = 0.01  # length of the random part that is added to a warm start
_STREAM = 2000  # of random numbers, different from those of probes
OTHERS = 10_000  # streams further on are the numbers of the next process's part of a vector


@dataclasses.dataclass(frozen=True)
class BlockGroup:
    """Blocks that run side by side, by their place among all."""

    members: tuple[int, ...]
    bases: tuple[int, ...]  # vectors of each
    on_host: bool = False


def vector_dtype(space: ParameterSpace) -> torch.dtype:
    """At least float32: Lanczos vectors in half precision would not stay orthogonal."""
    return torch.promote_types(space.dtype, torch.float32)


def basis_size(space: ParameterSpace, num: int) -> int:
    """How many vectors to keep where nothing limits them: enough to converge."""
    fitting = BASIS_BYTES // (4 * max(space.share, 1))
    return max(_least(num), min(MAX_BASIS, fitting))


def least_bytes(space: ParameterSpace, num: int) -> int:
    """What the shortest basis takes, with the products of a block."""
    return _product_bytes(space, num) + _basis_bytes(space, num, _least(num))


def full_bytes(space: ParameterSpace, num: int) -> int:
    """What a run takes where nothing limits it."""
    return _product_bytes(space, num) + _basis_bytes(space, num, basis_size(space, num))


def check_room(space: ParameterSpace, num: int, memory: VectorMemory) -> None:
    """Refuse a limit that the shortest basis exceeds, before anything is run."""
    if memory.limit is None or space.device.type != "cpu":
        return
    least = least_bytes(space, num)
    if least > max(memory.limit, LEAST):
        raise SpiritlevelError(
            f"The 'memory' argument must be at least {2 * least} bytes for eigenvalues here: "
            f"{_least(num)} Lanczos vectors of {space.share} entries and their products take "
            f"{least} bytes, and half of the memory is for the samples. Got about "
            f"{2 * memory.limit}. Raise it, restrict 'layers', or ask for fewer eigenvalues."
        )


def groups_of(
    spaces: Sequence[ParameterSpace], num: int, memory: VectorMemory, *, kept: bool = False
) -> list[BlockGroup]:
    """The runs side by side; `kept` leaves half of the memory to those who keep the basis."""
    sizes = [basis_size(space, num) for space in spaces]
    if memory.limit is None:
        return [BlockGroup(tuple(range(len(spaces))), tuple(sizes))]
    room = max(memory.limit // (2 if kept else 1), LEAST)
    groups: list[list[int]] = []
    taken = room
    for i, space in enumerate(spaces):
        least = least_bytes(space, num)
        if taken + least > room:
            groups.append([])
            taken = 0
        groups[-1].append(i)
        taken += least
    return [_group(members, spaces, sizes, num, room) for members in groups]


def _group(
    members: Sequence[int],
    spaces: Sequence[ParameterSpace],
    sizes: Sequence[int],
    num: int,
    room: int,
) -> BlockGroup:
    left = room - sum(_product_bytes(spaces[i], num) for i in members)
    low, high = _least(num), max(sizes[i] for i in members)
    while low < high:  # the longest that fits, by halving
        middle = (low + high + 1) // 2
        if sum(_basis_bytes(spaces[i], num, min(middle, sizes[i])) for i in members) <= left:
            low = middle
        else:
            high = middle - 1
    on_host = spaces[members[0]].device.type != "cpu" and (
        sum(_basis_bytes(spaces[i], num, low) for i in members) > left
    )
    if on_host:
        return BlockGroup(tuple(members), tuple(sizes[i] for i in members), on_host=True)
    return BlockGroup(tuple(members), tuple(min(low, sizes[i]) for i in members))


def _least(num: int) -> int:
    return max(MIN_BASIS, 4 * num)


def _basis_bytes(space: ParameterSpace, num: int, basis: int) -> int:
    """The bytes of a basis, and of the rest of a block behind it."""
    return (min(basis, space.share) + num) * space.share * vector_dtype(space).itemsize


def _product_bytes(space: ParameterSpace, num: int) -> int:
    return num * space.share * bytes_of_product(vector_dtype(space))


@dataclasses.dataclass(frozen=True, eq=False)
class Scaling:
    """Replaces a matrix H by S(H + D)S, with diagonal S and D."""

    scale: Tensor  # the diagonal of S, shape: (size,)
    shift: Tensor  # the diagonal of D, shape: (size,)

    def product(self, rows: Tensor, product: Tensor) -> Tensor:
        """S(H + D)S times rows, given H times `scale` times rows."""
        return self.scale * (product + self.shift * self.scale * rows)


def eigenpairs_of(
    products: AbstractProducts,
    spaces: Sequence[ParameterSpace],
    *,
    operator: Operator,
    num: int = 1,
    which: Which | Sequence[Which] = "largest",
    seed: int = 0,
    max_products: int = 200,
    rtol: float | None = None,
    residual_rtol: float | None = None,
    confidence: float = CONFIDENCE,
    starts: Sequence[Tensor | None] | None = None,
    keep: Sequence[bool] | None = None,
    scalings: Sequence[Scaling | None] | None = None,
) -> list[Eigenpairs]:
    """The eigenpairs of each block of parameters; blocks share the passes over the data.

    `rtol` is asked of the values and `residual_rtol` of the residuals, which vectors depend on; a
    value of residuals that products in this precision reach if neither is given.

    `which` is one for all blocks, or one for each. `keep` says for which blocks to return the whole
    subspace, which is as large as the basis; not where the host keeps it. `starts` are vectors of
    an earlier result, shape (count, size), which save products. `scalings` replace the matrices of
    some blocks. Where memory is limited, as many blocks go side by side as fit.
    """
    ends: Sequence[Which] = [which] * len(spaces) if isinstance(which, str) else which
    warm, kept = starts or [None] * len(spaces), keep or [False] * len(spaces)
    scaled = scalings or [None] * len(spaces)
    tolerances = [
        max(residual_tolerance(space.dtype), products.least_residual)
        if rtol is None and residual_rtol is None
        else residual_rtol
        for space in spaces
    ]
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
                residual_rtol=_reachable(tolerances[i], products.least_residual),
                rtol=rtol,
                max_products=max_products,
                max_basis=basis,
                generator=torch.Generator(spaces[i].device).manual_seed(seed + spaces[i].rank),
                confidence=confidence if warm[i] is None else None,
                size=spaces[i].whole,
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
    if products.method == "difference":
        for i, pairs in found.items():
            images = _images(products, Request(operator, spaces[i], pairs.vectors), scaled[i])
            found[i] = with_product_errors(pairs, images, residual_rtol=tolerances[i], rtol=rtol)
    return [found[i] for i in range(len(spaces))]


def _reachable(residual_rtol: float | None, least: float) -> float | None:
    """What the iteration is asked for: no less than its products reach."""
    return None if residual_rtol is None else max(residual_rtol, least)


def density_of(
    products: AbstractProducts,
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
        start = random_normals(seed, _STREAM + OTHERS * space.rank, part, space.size, dtype)
        quadrature = Quadrature(start, steps=steps, size=space.whole)
        del start
        with products.keeping_graph():
            parts += solve([quadrature], _multiplier(products, [space], operator))
    return SpectralDensity(
        torch.cat([part.nodes for part in parts]),
        torch.cat([part.weights for part in parts]),
        space.whole,
        products.remark,
    )


def residual_tolerance(dtype: torch.dtype) -> float:
    """The relative residual that products in this precision can reach."""
    return RESIDUALS.get(dtype, HALF_RESIDUAL)


def density_vectors(space: ParameterSpace, num_vectors: int, memory: VectorMemory) -> int:
    """How many vectors of a density go together: each has two of its recurrence, and a product."""
    if memory.limit is None:
        return num_vectors
    dtype = vector_dtype(space)
    each = space.share * (2 * dtype.itemsize + bytes_of_product(dtype))
    return min(num_vectors, max(1, memory.room(memory.limit) // each))


def _start(
    space: ParameterSpace, num: int, seed: int, warm: Tensor | None, group: BlockGroup
) -> Tensor:
    """Normal vectors, or the vectors of an earlier result with a small normal part added."""
    numbers = torch.arange(num, device=space.device)
    stream = _STREAM + 1 + OTHERS * space.rank
    rows = random_normals(seed, stream, numbers, space.size, vector_dtype(space))
    if group.on_host:
        rows = rows.cpu()
    if warm is None:
        return rows
    rows = rows / space.whole**0.5
    count = min(num, len(warm))
    # a random part, so that an eigenvector orthogonal to the old ones is found as well
    rows[:count] = warm[:count].to(rows) + MIXED * rows[:count]
    return rows


def _images(products: AbstractProducts, request: Request, scaling: Scaling | None) -> Images:
    """Products with the rows of a request, by the scaled matrix if there is a scaling."""
    if scaling is None:
        return products.images([request])[0]
    rows = request.vectors
    (images,) = products.images([dataclasses.replace(request, vectors=scaling.scale * rows)])
    assert images.gaps is not None
    assert images.rounding is not None
    return Images(
        scaling.product(rows, images.rows),
        scaling.scale * images.gaps,
        float(scaling.scale.abs().max()) * images.rounding,
    )


def _multiplier(
    products: AbstractProducts,
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
