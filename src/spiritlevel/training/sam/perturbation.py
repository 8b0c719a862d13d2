"""Displacements of the weights for SAM and its variants: tensors in, tensors out.

With several radii the ball becomes an ellipsoid, Σ ‖ε_i / (ρ_i T_i)‖² ≤ 1, one term per weight. The
same formula then covers SAM (T = 1) and ASAM (T = |w| + η), and a radius of 0 takes its weights
out altogether. Nothing here waits for the device: lengths stay tensors.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

_HALF = (torch.float16, torch.bfloat16)  # a length in half precision has three digits, or overflows


@dataclasses.dataclass(frozen=True)
class Block:
    """Weights of one radius on one device, so that each operation is a single call for all."""

    radius: float
    weights: list[Tensor]


@dataclasses.dataclass(frozen=True)
class Displacement:
    """ε of each block as direction times factor, which saves a pass over the weights."""

    directions: list[list[Tensor]]
    factors: list[Tensor]
    length: Tensor | None = None  # of the gradient that led here, to ask whether it is finite


def blocks_of(weights: Sequence[tuple[Tensor, float]]) -> list[Block]:
    """Weights grouped by radius and device; those of radius 0 are left out.

    >>> a, b, c = torch.zeros(3)
    >>> [(block.radius, len(block.weights)) for block in blocks_of([(a, 0.1), (b, 0), (c, 0.1)])]
    [(0.1, 2)]
    """
    blocks: dict[tuple[float, torch.device], Block] = {}
    for weight, radius in weights:
        if radius > 0:
            block = blocks.setdefault((radius, weight.device), Block(radius, []))
            block.weights.append(weight)
    return list(blocks.values())


@torch.no_grad()
def climb_(
    radii: Sequence[float],
    gradients: list[list[Tensor]],
    sizes: Sequence[list[Tensor]] | None = None,
) -> Displacement:
    """ε = T²g/‖Tg‖ with T = ρ · size, one list per radius; the gradients are changed in place.

    Within the ellipsoid it raises a linear loss the most. A gradient of 0 gives 0. A factor common
    to all gradients, such as a GradScaler's, drops out.

    >>> displacement = climb_([0.5], [[torch.tensor([3.0, 4.0])]])
    >>> displacement.directions[0][0] * displacement.factors[0]
    tensor([0.3000, 0.4000])
    """
    if sizes is not None:
        for block, size in zip(gradients, sizes, strict=True):
            torch._foreach_mul_(block, size)
    lengths = [radius * _length(block) for radius, block in zip(radii, gradients, strict=True)]
    total = _joined(lengths)
    if sizes is not None:
        for block, size in zip(gradients, sizes, strict=True):
            torch._foreach_mul_(block, size)
    return Displacement(gradients, [_finite(radius**2 / total) for radius in radii], total)


@torch.no_grad()
def draw_in_ball(blocks: Sequence[Block], generator: torch.Generator | None) -> Displacement:
    """ε uniform in the ball ‖ε‖ ≤ ρ of all weights together (in the ellipsoid, with several radii).

    A normal vector has a uniform direction; u^(1/d) with u uniform in (0, 1) has the density of the
    radius in d dimensions. The normals are drawn weight by weight, u last.
    """
    noise = [[_normal_like(weight, generator) for weight in block.weights] for block in blocks]
    num_weights = sum(weight.numel() for block in blocks for weight in block.weights)
    where = noise[0][0].device if generator is None else generator.device
    u = torch.rand((), generator=generator, device=where, dtype=torch.float32)
    length = _joined([_length(block) for block in noise])
    share = u.to(length) ** (1 / num_weights) / length
    return Displacement(noise, [_finite(block.radius * share) for block in blocks])


@contextlib.contextmanager
def displaced(
    blocks: Sequence[Block], by: Displacement, spares: Mapping[Tensor, Tensor]
) -> Iterator[None]:
    """ε is added to the weights in the block; afterwards they are the same, bit for bit.

    Every weight has a spare tensor of its shape. On a CPU, where memory is slow, the displaced
    weights are written there and take the place of the weights; elsewhere the spares keep the
    weights, whose addresses a captured graph may rely on. The directions may be overwritten.
    """
    with contextlib.ExitStack() as stack:
        for block, direction, factor in zip(blocks, by.directions, by.factors, strict=True):
            block_spares = [spares[weight] for weight in block.weights]
            displace = _exchanged if block.weights[0].device.type == "cpu" else _added
            stack.enter_context(displace(block.weights, direction, factor, block_spares))
        del by, direction  # freed before the next backward pass needs memory
        yield


@contextlib.contextmanager
def _exchanged(
    weights: list[Tensor], direction: list[Tensor], factor: Tensor, spares: list[Tensor]
) -> Iterator[None]:
    original = [weight.data for weight in weights]
    try:
        with torch.no_grad():
            for weight, step, spare in zip(weights, direction, spares, strict=True):
                weight.data = torch.add(weight, step, alpha=factor.item(), out=spare)
        del direction, step
        yield
    finally:
        for weight, before in zip(weights, original, strict=True):
            weight.data = before


@contextlib.contextmanager
def _added(
    weights: list[Tensor], direction: list[Tensor], factor: Tensor, spares: list[Tensor]
) -> Iterator[None]:
    with torch.no_grad():
        torch._foreach_copy_(spares, weights)
    try:
        with torch.no_grad():
            torch._foreach_mul_(direction, factor.to(direction[0].device))
            torch._foreach_add_(weights, direction)
        del direction
        yield
    finally:
        with torch.no_grad():
            torch._foreach_copy_(weights, spares)


def _normal_like(weight: Tensor, generator: torch.Generator | None) -> Tensor:
    """Drawn where the generator is, so that the numbers do not depend on the weights' device."""
    where = weight.device if generator is None else generator.device
    dtype = torch.float32 if weight.dtype in _HALF else weight.dtype
    noise = torch.randn(weight.shape, generator=generator, device=where, dtype=dtype)
    return noise.to(weight.device, weight.dtype)


def _length(tensors: list[Tensor]) -> Tensor:
    """The norm of all of them together; all are on one device."""
    if any(tensor.dtype in _HALF for tensor in tensors):
        parts = [torch.linalg.vector_norm(tensor, dtype=torch.float32) for tensor in tensors]
    else:
        parts = list(torch._foreach_norm(tensors))
    return _joined(parts)


def _joined(lengths: Sequence[Tensor]) -> Tensor:
    """√(Σ length²), in the widest of the types, on the first device."""
    dtype = torch.float64 if any(x.dtype == torch.float64 for x in lengths) else torch.float32
    return torch.linalg.vector_norm(torch.stack([x.to(lengths[0].device, dtype) for x in lengths]))


def _finite(factor: Tensor) -> Tensor:
    """0 in place of a factor that is not finite because a length of 0 was divided by."""
    return torch.where(factor < torch.inf, factor, 0.0)
