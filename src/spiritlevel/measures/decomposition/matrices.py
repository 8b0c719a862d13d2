"""M = J Jᵀ of every layer and sample: its largest eigenvalue, and what the curvature makes of it.

One backward a column of an orthonormal basis of the outputs reaches every layer at once, and the
inner products of what arrives are M in that basis. The first basis vector of a position is the one
that the softmax does not see (all classes alike); the curvature lives in the others, so that a
common part of all outputs, however large, never has to cancel.

With many outputs M is not formed: its largest eigenvalue comes from products J(Jᵀv), layer by
layer, until the residual is small.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...engine.moments import Moments
from ...engine.weight_space.eigenvalues import residual_tolerance
from ...engine.workspace import Workspace
from ...ground.errors import SpiritlevelError
from ...math.positions import Positions
from ...math.signs import random_normals
from ...model.autograd_graph import deepest, lacks_second_derivative
from ...model.batches import BatchLocation
from ...model.model_state import twice_differentiable
from ...records.measurements import Cost
from ..registry import once
from .paths import Paths, Seen

GRAM_OUTPUTS = 32  # up to here M is formed; its eigenvalues are then exact
_STREAM = 4000  # of random numbers: apart from all others


@dataclasses.dataclass
class PathMatrices:
    """Sums over the data, one row per layer."""

    centered: Moments  # s Tr(A M); empty where M was not formed
    bound: Moments  # 2 s λ_max(M), times the weight of the sample's targets
    top: Moments  # λ_max(M)
    residuals: dict[str, Tensor]  # of `bound` and `top`, one per layer; empty if exact
    steps: int  # products a layer took at most; 0 if exact
    cost: Cost = dataclasses.field(default_factory=Cost)

    def residual(self, kind: str, layer: str) -> float | None:
        """How far the mean of a layer may be off; None if it is exact."""
        if not self.residuals:
            return None
        return float(self.residuals[kind][self.top.index[layer]]) / self.top.total_weight


@once
def path_matrices(workspace: Workspace) -> PathMatrices:
    """The sums over the data, computed once and shared by the measures of the family."""
    before = workspace.cost
    paths = Paths(workspace)
    matrices = _formed(paths) if forms_matrices(workspace) else _by_products(paths)
    matrices.cost = workspace.cost - before
    return matrices


def forms_matrices(workspace: Workspace) -> bool:
    """Whether there are few enough outputs."""
    return workspace.plan.num_outputs <= GRAM_OUTPUTS


# -- few outputs: M itself ------------------------------------------------------------------------


def _formed(paths: Paths) -> PathMatrices:
    num_outputs = paths.plan.num_outputs
    # all columns of all layers, and those of one layer in float64 once more
    num_bytes = 2 * num_outputs * _output_bytes(paths)

    def values(seen: Seen, where: BatchLocation) -> list[Tensor]:
        basis = softmax_basis(seen.positions).to(seen.outputs.device)
        grams = _grams(seen, basis)
        columns = torch.stack([column for column, _ in seen.curvature.columns()], dim=1)
        columns = columns @ basis.T  # s_k in that basis, shape: (N, K, E)
        rows = []
        for layer, M in grams.items():
            squares = seen.squared_inputs(layer)
            centered = squares * ((columns @ M) * columns).sum(dim=(1, 2))
            top = torch.linalg.eigvalsh(M)[:, -1].clamp(min=0.0)
            rows.append(torch.stack([centered, 2 * seen.mass * squares * top, top * seen.weights]))
        return list(torch.stack(rows, dim=1))

    moments = [Moments(paths.layers, paths.surface.device) for _ in range(3)]
    _go(paths, moments, values, chunk=_chunk(paths, num_bytes))
    centered, bound, top = moments
    return PathMatrices(centered, bound, top, residuals={}, steps=0)


def softmax_basis(positions: Positions) -> Tensor:
    """Orthonormal rows over the outputs of a sample; one of a position's is constant on it.

    >>> basis = softmax_basis(Positions((3,), 1))
    >>> torch.allclose(basis @ basis.T, torch.eye(3).double()), basis[0].std() < 1e-15
    (True, tensor(True))
    """
    size = positions.num_classes
    axis = torch.full((size,), -(size**-0.5), dtype=torch.float64)
    axis[0] += 1.0  # the reflection along e_0 − 1/√C takes e_0 to the constant vector
    reflection = torch.eye(size, dtype=torch.float64)
    reflection -= 2.0 * torch.outer(axis, axis) / axis.square().sum()
    units = torch.eye(size * positions.count, dtype=torch.float64)
    return positions.flat(positions.rows(units) @ reflection)


def _grams(seen: Seen, basis: Tensor) -> dict[str, Tensor]:
    """M of each layer in a basis, shape (N, E, E)."""
    by_layer: dict[int, list[Tensor]] = {}
    for use in seen.used:
        use.on_output = by_layer.setdefault(id(use), []).append
    if deep := deepest(seen.outputs, seen.edges) if seen.edges else []:
        for row in basis.to(seen.outputs.dtype):
            column = row.reshape(1, *seen.outputs.shape[1:]).expand_as(seen.outputs)
            seen.paths.surface.pull(seen.outputs, column, deep)
    size = len(basis)
    grams = {}
    for layer, uses in seen.live.items():
        M = basis.new_zeros(seen.num_samples, size, size)
        for use in uses:
            if columns := by_layer.pop(id(use)):
                J = torch.stack([seen.flat(use, delta) for delta in columns], dim=1)
                M += J @ J.mT
        grams[layer] = M
    return grams


# -- many outputs: products with M ----------------------------------------------------------------


def _by_products(paths: Paths) -> PathMatrices:
    workspace, surface = paths.workspace, paths.surface
    tolerance = residual_tolerance(surface.dtype)
    max_steps = workspace.precision.max_passes
    size = paths.plan.footprint.graph
    size += 8 * paths.plan.num_outputs * (min(max_steps, paths.plan.num_outputs) + 4)
    count = len(paths.layers)
    zeros = torch.zeros(count, dtype=torch.float64, device=surface.device)
    residuals = {"bound": zeros, "top": zeros.clone()}
    steps = torch.zeros((), dtype=torch.float64, device=surface.device)

    def values(seen: Seen, where: BatchLocation) -> list[Tensor]:
        numbers = paths.numbers.of(where, seen.num_samples)
        elements = seen.outputs[0].numel()
        start = random_normals(workspace.seed, _STREAM, numbers, elements, torch.float64)
        rows = []
        for row, layer in enumerate(paths.layers):
            factor = 2 * seen.mass * seen.squared_inputs(layer)
            weights = torch.stack([factor, seen.weights])
            moments = _largest(seen, layer, start, weights, max_steps, tolerance)
            rows.append(weights * moments.values)
            for kind, value in zip(residuals, weights @ moments.residuals, strict=True):
                residuals[kind][row] += value
            steps.clamp_(min=moments.steps)
        return list(torch.stack(rows, dim=1))

    moments = [Moments(paths.layers, surface.device) for _ in range(2)]
    with twice_differentiable():
        _go(paths, moments, values, chunk=max(1, workspace.memory // (size + 1)))
    surface.processes.sum_(*residuals.values())
    most = max(surface.processes.gather(int(steps)))
    bound, top = moments
    empty = Moments([], surface.device)
    return PathMatrices(empty, bound, top, residuals=residuals, steps=most)


def _largest(
    seen: Seen, layer: str, start: Tensor, weights: Tensor, max_steps: int, tolerance: float
) -> LargestEigenvalues:
    """λ_max of each sample: Jᵀ by a backward, J by the backward of that backward."""
    surface, outputs, uses = seen.paths.surface, seen.outputs, seen.live[layer]
    if not uses:
        zeros = torch.zeros_like(seen.weights)
        return LargestEigenvalues(zeros, zeros, 0)
    edges: list[Any] = [use.edge for use in uses]
    with torch.enable_grad():
        u = torch.zeros_like(outputs, requires_grad=True)
        pulled = torch.autograd.grad(
            outputs, edges, u, create_graph=True, retain_graph=True, allow_unused=True
        )
    surface.cost += Cost(backwards=seen.num_samples)
    live = [i for i, part in enumerate(pulled) if part is not None and part.requires_grad]
    if lacks_second_derivative(pulled):
        raise SpiritlevelError(
            f"The path matrix of layer {layer!r} needs products with the Jacobian of the "
            f"{outputs[0].numel()} outputs, and a function of the model is differentiable only "
            "once. Leave decomposition.upper_bound and decomposition.path_lambda_max out, or use "
            "functions that can be differentiated twice."
        )

    def multiply(v: Tensor) -> Tensor:
        signal = v.to(outputs.dtype).reshape(outputs.shape)
        back = surface.pull(outputs, signal, edges)
        pairs = [(pulled[i], back[i]) for i in live]
        surface.cost += Cost(backwards=seen.num_samples)
        (image,) = torch.autograd.grad(
            [g for g, _ in pairs], u, [w for _, w in pairs], retain_graph=True
        )
        return image.reshape(len(image), -1)

    def enough(values: Tensor, residuals: Tensor) -> bool:
        reached = weights @ residuals <= tolerance * (weights @ values)
        return bool(reached.all())

    if not live:
        zeros = torch.zeros_like(seen.weights)
        return LargestEigenvalues(zeros, zeros, 0)
    return largest_eigenvalues(multiply, start, max_steps=max_steps, enough=enough)


# -- both -----------------------------------------------------------------------------------------


def _go(
    paths: Paths,
    totals: list[Moments],
    values: Callable[[Seen, BatchLocation], list[Tensor]],
    *,
    chunk: int,
) -> None:
    """Add (layers, N) values of every chunk to each of `totals`, in all processes."""
    surface = paths.surface
    with surface.processes.together():
        for where, batch in surface.chunks(chunk):
            with paths.opened(batch, where) as seen:
                for total, rows in zip(totals, values(seen, where), strict=True):
                    total.add(rows, seen.weights)
    for total in totals:
        total.reduce(surface.processes)


def _output_bytes(paths: Paths) -> int:
    """What all pre-activations of one sample take in float64."""
    with paths.opened(paths.surface.first_samples(1), BatchLocation(0)) as seen:
        return sum(8 * use.output.numel() for use in seen.used)


def _chunk(paths: Paths, num_bytes: int) -> int:
    """Samples at a time, if each needs this many bytes in addition to its graph."""
    footprint = paths.plan.footprint
    return max(
        1, min(paths.workspace.memory // (footprint.saved + num_bytes + 1), footprint.fitting)
    )


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
