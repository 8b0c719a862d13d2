"""Climbing to the largest loss within a ball around the weights, one gradient per step.

A plain step along the gradient, put back onto the sphere, is a power iteration: it needs hundreds
of steps, and where the loss bends down more than up it runs to the wrong end. Here each step goes
to the top of a quadratic model. What the gradients at the points seen so far say about the
curvature is used on the space that these points span, and the gradient adds one new direction to
it. On a quadratic loss the points span the Krylov space of the gradient, so k steps find what the
best of all methods with k gradients finds (Gould et al. 1999 for the Hessian itself). A step that
does not climb is not taken, but what it shows of the curvature is kept.

Everything is made of inner products, so that coordinates in which a move of the network leaves
the loss as it was give the same climb.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

TOLERANCE = 1e-11  # of the rise: a step that promises less is not made
PARALLEL = 1e-6  # sin² of an angle below which a direction adds only noise to the model
NEW = 1e-12  # of the gradient: a rest below it is round-off
SHORTEST = 1e12  # of the largest curvature: steps end where round-off begins
GOOD = 0.25  # share of the promised rise from which on the model is trusted again

Slope = Callable[[Tensor], tuple[float, Tensor]]  # at a displacement: loss and gradient, float64


@dataclasses.dataclass(frozen=True)
class Point:
    """A displacement, with loss and gradient there."""

    place: Tensor
    loss: float
    gradient: Tensor


@dataclasses.dataclass(frozen=True)
class Peak:
    """The largest loss found, less the loss at the centre."""

    rise: float
    residual: float  # how much may be missing, as far as the climb itself can tell
    unfinished: float  # rise that was still going on when the steps were spent; 0 if it ended
    steps: int


def ascend(
    slope: Slope,
    centre: Point,
    start: Tensor,
    *,
    radius: float,
    steps: int,
    memory: int,
    round_off: float,
    inside: bool,
) -> Peak:
    """From `start` to a local maximum in the ball; at most `memory` points are remembered.

    `round_off` is what the loss is known to. A climb that may not go `inside` stays on the sphere:
    from a random start where the loss bends down it would otherwise slide to the centre.
    """
    best = Point(start, *slope(start))
    others = [centre]  # the centre stays: with it the direction of `best` itself is known
    if inside and best.loss < centre.loss:
        best, others = centre, [best]
    reach = 2 * radius
    reached = [best.loss]  # after each step
    while True:
        trial, promise = _next(best, others, radius, reach, inside)
        rise = max(best.loss - centre.loss, 0.0)
        if promise <= max(TOLERANCE * rise, round_off):
            # twice: what the next step promises is nearly, but not quite, all that is missing
            return Peak(rise, max(2 * promise, round_off), 0.0, len(reached))
        if len(reached) == steps:
            half, quarter = (best.loss - reached[-1 - steps // part] for part in (2, 4))
            # as many steps again bring hardly more than the second half of these did
            return Peak(rise, max(promise, half), max(promise, quarter), steps)
        point = Point(trial, *slope(trial))
        length = float((trial - best.place).norm())
        gain = point.loss - best.loss
        # a kink, as ReLUs make them, looks like any curvature to two points beside it
        reach = max(reach, 2 * length) if gain >= GOOD * promise else length / 4
        if gain > 0.0:
            best, point = point, best
        others = _remembered(others, point, centre, memory)
        reached.append(best.loss)


def _remembered(others: Sequence[Point], newest: Point, centre: Point, memory: int) -> list[Point]:
    """The centre, unless it is the best, and the last few, the newest first."""
    seen = [newest, *others]
    rest = [p for p in seen if p is not centre]
    return [p for p in seen if p is centre] + rest[:memory]


def _next(
    best: Point, others: Sequence[Point], radius: float, reach: float, inside: bool
) -> tuple[Tensor, float]:
    """Where in the ball the model is largest within reach, and by how much it promises to rise."""
    basis = _Basis(best, others)
    B, slope, here = basis.curvature(), basis.slope, basis.here()
    one = torch.eye(len(B), dtype=B.dtype)
    scale = max(float(torch.linalg.eigvalsh(B).abs().max()), float(slope.norm()) / radius)
    short = 0.0
    while True:  # the more curvature is taken off, the shorter the step
        bent = B - short * one
        step = peak_in_ball(bent, slope - bent @ here, radius, inside=inside) - here
        if float(step.norm()) <= reach or short > SHORTEST * scale:
            break
        short = max(2 * short, scale / 256)
    promise = float(slope @ step + 0.5 * step @ bent @ step)
    trial = best.place + basis.combine(step)
    length = float(trial.norm())
    if length > radius or not inside:  # round-off
        trial = trial * (radius / length)
    return trial, promise


class _Basis:
    """Orthonormal directions: of the points seen from the best one, then what the gradient adds.

    Only inner products are kept, and one new vector, the rest of the gradient: the weights may be
    so many that every vector counts.
    """

    def __init__(self, best: Point, others: Sequence[Point]) -> None:
        self.best, self.others = best, others
        self.mix = _orthonormal(self._by_steps(lambda p: p.place - best.place))
        along = self._of(best.gradient)
        rest = best.gradient - self._combined(self.mix @ along)
        rest = rest - self._combined(self.mix @ self._of(rest))  # once more: it is a small rest
        length = float(rest.norm())
        new = length > NEW * float(best.gradient.norm())
        self.rest = rest / length if new else None
        self.slope = torch.cat([along, along.new_tensor([length])]) if new else along

    def here(self) -> Tensor:
        """The best point in these directions."""
        z = self._of(self.best.place)
        return z if self.rest is None else torch.cat([z, z.new_zeros(1)])

    def curvature(self) -> Tensor:
        """What the gradients' differences say, and a cautious guess for the new direction.

        That of the gradient's rest is not known before a step was made along it. None is assumed,
        or the lowest seen where that is below: the lower, the shorter the step.
        """
        turns = self._by_steps(lambda p: p.gradient - self.best.gradient)  # curvature times step
        seen = self.mix.T @ turns @ self.mix
        seen = (seen + seen.T) / 2  # it is symmetric where the loss is quadratic
        if self.rest is None:
            return seen
        ahead = [(p.gradient - self.best.gradient) @ self.rest for p in self.others]
        mixed = torch.stack(ahead).cpu() @ self.mix
        size = len(seen)
        B = seen.new_zeros(size + 1, size + 1)
        B[:size, :size], B[:size, size], B[size, :size] = seen, mixed, mixed
        lowest = float(torch.linalg.eigvalsh(seen)[0]) if size else 0.0
        B[size, size] = min(lowest, 0.0)
        return B

    def combine(self, z: Tensor) -> Tensor:
        """The vector of weights with these components in the basis."""
        size = self.mix.shape[1]
        vector = self._combined(self.mix @ z[:size])
        return vector if self.rest is None else vector.add_(self.rest, alpha=float(z[size]))

    def _by_steps(self, vector: Callable[[Point], Tensor]) -> Tensor:
        """Inner products of every step with a vector of every point, shape (steps, points)."""
        columns = []
        for point in self.others:
            column = vector(point)
            columns.append([(p.place - self.best.place) @ column for p in self.others])
        return torch.stack([torch.stack(column) for column in columns], dim=1).cpu()

    def _of(self, vector: Tensor) -> Tensor:
        components = [(p.place - self.best.place) @ vector for p in self.others]
        return self.mix.T @ torch.stack(components).cpu()

    def _combined(self, factors: Tensor) -> Tensor:
        total = torch.zeros_like(self.best.place)
        for factor, point in zip(factors.tolist(), self.others, strict=True):
            total.add_(point.place - self.best.place, alpha=factor)
        return total


def _orthonormal(gram: Tensor) -> Tensor:
    """Factors that make orthonormal vectors of those with these inner products, first ones first.

    A vector that lies nearly in the span of those before it is left out.
    """
    columns: list[Tensor] = []
    for i in range(len(gram)):
        factors = torch.zeros(len(gram), dtype=gram.dtype)
        factors[i] = 1.0
        for _ in range(2):  # twice is enough
            for column in columns:
                factors = factors - (column @ gram @ factors) * column
        square = float(factors @ gram @ factors)
        if square > PARALLEL * float(gram[i, i]):
            columns.append(factors / square**0.5)
    if not columns:
        return gram.new_zeros(len(gram), 0)
    return torch.stack(columns, dim=1)


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
