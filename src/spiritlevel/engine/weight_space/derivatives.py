"""Derivatives of functions of named tensors: gradients, forward derivatives and differences."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import jvp

Parts = dict[str, Tensor]


def plain_gradient(
    value: Callable[[Parts], Tensor],
    within: Callable[[Parts], contextlib.AbstractContextManager[None]],
) -> Callable[[Parts], Parts]:
    """The gradient by a plain backward, which every function with a gradient supports.

    `within` makes a context of the point for forward and backward.
    """

    def gradient(start: Parts) -> Parts:
        leaves = {name: part.detach().requires_grad_() for name, part in start.items()}
        with within(leaves):
            with torch.enable_grad():
                total = value(leaves)
            gradients = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
        return {
            name: torch.zeros_like(leaf) if g is None else g
            for (name, leaf), g in zip(leaves.items(), gradients, strict=True)
        }

    return gradient


def forward_derivative(function: Callable[[Parts], Parts], start: Parts, along: Parts) -> Parts:
    """The derivative of a function along a direction, by forward differentiation."""
    tangents: Parts = jvp(function, (start,), (along,))[1]
    return {name: t.detach() for name, t in tangents.items()}


def central_difference(function: Callable[[Parts], Parts], start: Parts, along: Parts) -> Parts:
    """With a step of the cube root of the precision times the parameters' length."""
    length = math.sqrt(sum(float(v.double().square().sum()) for v in along.values()))
    if length == 0.0:
        return {name: torch.zeros_like(value) for name, value in function(start).items()}
    scale = math.sqrt(sum(float(v.double().square().sum()) for v in start.values()))
    eps = torch.finfo(next(iter(start.values())).dtype).eps
    step = eps ** (1 / 3) * max(scale, 1.0) / length
    ahead = function({name: value + step * along[name] for name, value in start.items()})
    behind = function({name: value - step * along[name] for name, value in start.items()})
    return {
        name: ((ahead[name].double() - behind[name].double()) / (2 * step)).detach()
        for name in ahead
    }
