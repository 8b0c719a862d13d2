"""A check that the derivatives torch gives for a user's loss are those of its values.

`detach()` inside a loss, or a custom function with a backward of its own, can make the first or the
second derivative something else than the derivative, without any error.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor

from ...ground.errors import SpiritlevelError

MOST_SAMPLES = 16  # a wrong rule is wrong for all samples
MIN_SHARE = 0.05  # chance, or a kink that was missed, concerns single elements


@dataclasses.dataclass(frozen=True)
class Accuracy:
    """How finite differences are taken and judged."""

    step: float  # relative; about the third root of the round-off
    smooth: float  # differences to both sides agree this well where there is no kink between
    tolerance: float  # wrong rules are off by a factor
    noise: float  # relative to the largest derivative; smaller differences say nothing


DOUBLE = Accuracy(step=1e-5, smooth=1e-3, tolerance=1e-2, noise=1e-6)
SINGLE = Accuracy(step=1e-2, smooth=0.05, tolerance=0.2, noise=1e-2)


def check_derivatives(
    name: str,
    loss: Callable[[Tensor, Tensor], Tensor],
    outputs: Tensor,
    targets: Tensor,
    where: str,
) -> None:
    """Compare derivatives along a random direction with finite differences, at some samples."""
    z, y, direction = _chosen(outputs, targets)
    direction = direction * (1 + z.abs())
    with torch.enable_grad():
        z = z.detach().requires_grad_()
        values = loss(z, y)
        if not values.requires_grad:
            raise SpiritlevelError(
                f"The loss {name!r} must be differentiable in the outputs. In {where} torch has no "
                "gradient for it. Use tensor operations, not numpy, .item(), .detach() or argmax."
            )
        (gradient,) = torch.autograd.grad(values.sum(), z, create_graph=True)
        second = _second(gradient, z, direction)
    z, gradient, values = z.detach(), gradient.detach(), values.detach()

    def value_at(step: float) -> Tensor:
        with torch.no_grad():
            return loss(z + step * direction, y)

    def gradient_at(step: float) -> Tensor:
        with torch.enable_grad():
            moved = (z + step * direction).requires_grad_()
            return torch.autograd.grad(loss(moved, y).sum(), moved)[0]

    along = (gradient * direction).reshape(len(z), -1).sum(dim=1)
    try:
        # a change in the tenth digit is lost if the loss computes in float32
        accuracy = SINGLE if torch.equal(value_at(1e-10), values) else DOUBLE
        _compare(name, "first", along, values, value_at, accuracy, where)
        if second is not None:
            _compare(name, "second", second, gradient, gradient_at, accuracy, where)
    except (RuntimeError, ValueError) as error:
        if isinstance(error, SpiritlevelError | torch.cuda.OutOfMemoryError):
            raise
        # next to these outputs the loss is not defined, as next to a probability of exactly 1


def rounding_of_second(
    loss: Callable[[Tensor, Tensor], Tensor], outputs: Tensor, targets: Tensor
) -> Tensor | None:
    """The rounding of numbers next to 1, and the size of second derivatives, at some samples.

    None where there are none, as in a loss that is linear in its outputs.
    """
    z, y, direction = _chosen(outputs, targets)
    with torch.enable_grad():
        z = z.detach().requires_grad_()
        values = loss(z, y)
        if not values.requires_grad:
            return None
        (gradient,) = torch.autograd.grad(values.sum(), z, create_graph=True)
        second = _second(gradient, z, direction)
    if second is None or not bool(second.any()):
        return None
    eps = torch.finfo(torch.float64).eps
    return torch.stack([eps * direction.norm(), second.detach().norm()])


def _chosen(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Some samples, their targets, and random numbers in the outputs' shape."""
    chosen = torch.linspace(0, len(outputs) - 1, min(len(outputs), MOST_SAMPLES)).long()
    z, y = outputs[chosen.to(outputs.device)], targets[chosen.to(outputs.device)]
    generator = torch.Generator().manual_seed(0)
    return z, y, torch.randn(z.shape, generator=generator, dtype=torch.float64).to(z.device)


def _second(gradient: Tensor, z: Tensor, direction: Tensor) -> Tensor | None:
    """The second derivative along the direction; None if torch has none, which is refused later."""
    if not gradient.requires_grad:
        return torch.zeros_like(z)
    try:
        (second,) = torch.autograd.grad(gradient, z, direction, allow_unused=True)
    except RuntimeError as error:
        if isinstance(error, torch.cuda.OutOfMemoryError):
            raise
        return None
    return torch.zeros_like(z) if second is None else second


def _compare(
    name: str,
    which: str,
    derivative: Tensor,
    here: Tensor,
    at: Callable[[float], Tensor],
    accuracy: Accuracy,
    where: str,
) -> None:
    """Refuse a derivative that differs from differences which can be trusted."""
    step = accuracy.step
    ahead, behind = (at(step) - here) / step, (here - at(-step)) / step
    closer = (at(step / 10) - at(-step / 10)) / (step / 5)
    difference = (ahead + behind) / 2
    size = torch.stack([derivative.abs(), ahead.abs(), behind.abs(), closer.abs()]).amax(dim=0)
    noise = accuracy.noise * (here.abs().amax() + size.nan_to_num(posinf=0.0).amax())
    allowed = accuracy.smooth * size + noise
    is_smooth = ((ahead - behind).abs() <= allowed) & ((difference - closer).abs() <= allowed)
    is_wrong = (derivative - difference).abs() > accuracy.tolerance * size + 10 * noise
    is_wrong &= is_smooth
    if int(is_wrong.sum()) > MIN_SHARE * is_wrong.numel():
        index = int(is_wrong.flatten().nonzero()[0])
        raise SpiritlevelError(
            f"The loss {name!r} must have true derivatives. In {where} torch's {which} derivative "
            f"along a random direction is {float(derivative.flatten()[index]):.6g}, and a finite "
            f"difference gives {float(difference.flatten()[index]):.6g}. Look for detach(), "
            "no_grad(), .data, rounding, or a custom autograd function in the loss."
        )
