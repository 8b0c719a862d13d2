"""Second derivatives of functions that saturate, which torch forms as differences next to 1.

Of those whose input autograd keeps, no digit is lost here: σ(x)·σ(−x) takes the place of s·(1 − s).
Of tanh and the sigmoid it keeps the result, where 1 − t and 1 − s may be all rounding already.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .linearity import operation_of


class Saturating(NamedTuple):
    """What is known of a function at its own argument x, in float64."""

    second: Tensor  # φ''(x)
    lost_of_first: Tensor | float = 0.0  # how far rounding may be off in torch's φ'(x)
    lost_of_second: Tensor | float = 0.0  # and in φ''(x)


def saturating(node: Any) -> Saturating | None:
    """The second derivative of what a node computed; None for those that torch forms well."""
    find = _FUNCTIONS.get(operation_of(node))
    with torch.no_grad():
        return None if find is None else find(node)


def _sigmoids(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.sigmoid(x), torch.sigmoid(-x)


def _bell(x: Tensor) -> Tensor:
    """1 − tanh² x."""
    rising, falling = _sigmoids(2 * x)
    return 4 * rising * falling


def _tanh(node: Any) -> Saturating:
    t, eps = _kept(node._saved_result)
    first, second = 2 * t * t, t * (6 * t * t - 2)
    return Saturating(-2 * t * (1 - t) * (1 + t), eps * first, eps * second.abs())


def _sigmoid(node: Any) -> Saturating:
    s, eps = _kept(node._saved_result)
    first, second = s * (1 - 2 * s), s * (1 - 6 * s + 6 * s * s)
    return Saturating(s * (1 - s) * (1 - 2 * s), eps * first.abs(), eps * second.abs())


def _softplus(node: Any) -> Saturating:
    kept, beta = node._saved_self, node._saved_beta
    rising, falling = _sigmoids(beta * kept.double())
    bends = beta * kept <= node._saved_threshold  # beyond, torch takes it for a straight line
    return Saturating(torch.where(bends, beta * rising * falling, 0.0))


def _log_sigmoid(node: Any) -> Saturating:
    rising, falling = _sigmoids(node._saved_self.double())
    return Saturating(-rising * falling)


def _silu(node: Any) -> Saturating:
    x = node._saved_self.double()
    rising, falling = _sigmoids(x)
    return Saturating(rising * falling * (2 + x * (falling - rising)))


def _mish(node: Any) -> Saturating:
    x = node._saved_self.double()
    rising, falling = _sigmoids(x)
    plus = -torch.nn.functional.logsigmoid(-x)  # softplus without a threshold
    inner = 2 + x * (falling - 2 * plus.tanh() * rising)
    return Saturating(_bell(plus) * rising * inner)


def _gelu(node: Any) -> Saturating:
    x, eps = _kept(node._saved_self)
    if node._saved_approximate == "none":
        density = torch.exp(-x * x / 2) / math.sqrt(2 * math.pi)
        return Saturating(density * (2 - x * x), eps / 2)
    scale, cubic = math.sqrt(2 / math.pi), 0.044715
    u = scale * (x + cubic * x**3)
    slope, bend = scale * (1 + 3 * cubic * x * x), 6 * scale * cubic * x
    second = _bell(u) * (slope + x / 2 * (bend - 2 * u.tanh() * slope * slope))
    return Saturating(second, eps / 2 * (1 + (x * slope).abs()))


def _kept(tensor: Tensor) -> tuple[Tensor, float]:
    return tensor.double(), torch.finfo(tensor.dtype).eps


_FUNCTIONS: dict[str, Callable[[Any], Saturating]] = {
    "Tanh": _tanh,
    "Sigmoid": _sigmoid,
    "Softplus": _softplus,
    "LogSigmoid": _log_sigmoid,
    "Silu": _silu,
    "Mish": _mish,
    "Gelu": _gelu,
}
