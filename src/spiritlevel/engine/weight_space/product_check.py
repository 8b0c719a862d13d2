"""Are a method's products with the Hessian those of the loss?

Nothing raises where a second derivative is wrong. So products along random directions are held
against finite differences of the gradient, one parameter at a time, on a few samples.

At most four vectors as large as the weights are held at a time: the parameters that were moved a
little (`trust`), and

- for a product its direction, its value, and the sum over the samples before;
- for a difference the place ahead or behind, the difference so far, and the product.

Gradients come one parameter at a time and are not kept.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ...model import batches as _batches
from ...model.batches import BatchLocation
from ...model.surface import Surface
from ...records import Cost
from . import trusted_derivatives
from .chunk_products import ProductMethod, make_products, product_of_hessian
from .parameter_space import ParameterSpace

TOLERANCE = 1e-3  # a wrong derivative is wrong by its own size; the differences have five digits
VECTORS = 4  # as large as the weights, at a time
PIECE = 1 << 22  # numbers of a parameter that are compared in float64 at a time

Parts = dict[str, Tensor]


def untrusted_parameter(
    surface: Surface, method: ProductMethod, batch: Any, *, at_once: int, seed: int
) -> str | None:
    """The first parameter whose part of a product differs from differences of the gradient.

    `at_once` samples run together; `seed` gives the direction.
    """
    parts = trusted_derivatives.pieces(surface.received(batch), at_once)
    rounding = _gradient_rounding(surface, parts)
    start = {name: p.detach() for name, p in surface.parameters.items()}
    # A parameter without effect, like a key's bias under softmax, has a gradient of which only the
    # rounding of the terms that cancel is left. These may be as large as any other gradient.
    least = max(rounding.values(), default=0.0) / trusted_derivatives.STEPS[0]
    along = trusted_derivatives.Directions(surface, seed)
    claimed = _product(surface, method, parts, along)
    suspects = set(start)
    for step in trusted_derivatives.STEPS:
        change = _change_of_gradient(surface, parts, along, step)
        judged = sorted(suspects)  # their sizes are read at once: a GPU would wait for each
        lengths = [
            _lengths(change.get(name), claimed.get(name), 2 * step, start[name]) for name in judged
        ]
        del change  # before the next step makes another one
        for name, (gap, *sizes) in zip(judged, torch.stack(lengths).tolist(), strict=True):
            if gap <= TOLERANCE * max(sizes) + rounding[name] / step + least:
                suspects.discard(name)
        if not suspects:
            return None
    return next(name for name in start if name in suspects)


def _gradient_rounding(surface: Surface, parts: Sequence[Any]) -> Mapping[str, float]:
    """How accurate the gradient of all parts can be, by parameter."""
    sums = dict.fromkeys(surface.parameters, 0.0)
    for part in parts:
        with torch.enable_grad():
            outputs, _ = surface.outputs(part, where=BatchLocation(0))
        for name, size in trusted_derivatives.gradient_rounding(surface, outputs).items():
            sums[name] += size
        del outputs  # and its graph: the products have a larger one
    return sums


def _product(
    surface: Surface,
    method: ProductMethod,
    parts: Sequence[Any],
    along: trusted_derivatives.Directions,
) -> Parts:
    """The product of the samples' Hessians with a direction; parts that are 0 are missing."""
    total: Parts = {}
    for part in parts:
        if method == "reverse":
            product = product_of_hessian(surface, part, BatchLocation(0), along.of)
        else:
            product = _joined_product(surface, method, part, along)
        for name in list(product):
            value = product.pop(name)
            total[name] = total[name].add_(value) if name in total else value
            del value  # or the last one is held while the next part is multiplied
    return total


def _joined_product(
    surface: Surface, method: ProductMethod, part: Any, along: trusted_derivatives.Directions
) -> Parts:
    """A product by a method that takes and gives flat vectors."""
    space = ParameterSpace(surface)
    _, products = make_products(surface, part, BatchLocation(0), ("hessian",), space.names, method)
    vector = space.join([along.of(n, p.detach()) for n, p in surface.parameters.items()])
    return space.split(products["hessian"](space, vector[None])[0])


def _change_of_gradient(
    surface: Surface, parts: Sequence[Any], along: trusted_derivatives.Directions, step: float
) -> Parts:
    """The gradient a step ahead minus that a step behind; parts that are 0 are missing."""
    change: Parts = {}

    def take(name: str, sign: float, leaf: Tensor) -> None:
        gradient, leaf.grad = leaf.grad, None
        assert gradient is not None
        if name in change:
            change[name].add_(gradient, alpha=sign)
        else:
            change[name] = gradient.mul_(sign)

    for sign in (1.0, -1.0):
        leaves = {
            name: along.of(name, p.detach()).mul_(sign * step).add_(p.detach()).requires_grad_()
            for name, p in surface.parameters.items()
        }
        for name, leaf in leaves.items():
            leaf.register_post_accumulate_grad_hook(functools.partial(take, name, sign))
        for part in parts:
            # a backward belongs into the block: there a checkpointed part of the model runs again
            with surface.substituting(leaves):
                with torch.enable_grad():
                    outputs, targets = surface.outputs(part, where=BatchLocation(0))
                    total = surface.loss.values(outputs.double(), targets).sum()
                torch.autograd.backward(total, inputs=list(leaves.values()))
            surface.cost += Cost(backwards=_batches.num_samples(part))
            del outputs, total
        del leaves, leaf
    return change


def _lengths(change: Tensor | None, claimed: Tensor | None, step: float, like: Tensor) -> Tensor:
    """The length of (change / step − claimed), of change / step and of claimed, in float64."""
    nothing = [None] * math.ceil(max(like.numel(), 1) / PIECE)
    squares = torch.zeros(3, dtype=torch.float64, device=like.device)
    changes = nothing if change is None else change.detach().flatten().split(PIECE)
    claims = nothing if claimed is None else claimed.detach().flatten().split(PIECE)
    zero = squares.new_zeros(())
    for ahead, said in zip(changes, claims, strict=True):
        difference = zero if ahead is None else ahead.double() / step
        product = zero if said is None else said.double()
        sizes = (difference - product, difference, product)
        squares += torch.stack([size.square().sum() for size in sizes])
    return squares.sqrt()
