"""Which method of forming products with the Hessian a model supports, and gets right.

Nothing raises where a second derivative is wrong. So products along random directions are compared
with finite differences of the gradient, one parameter at a time, on a few samples.

At most four vectors as large as the weights are held at a time: the parameters that were moved a
little (`trust`), and

- for a product its direction, its value, and the sum over the samples before;
- for a difference the place ahead or behind, the difference so far, and the product.

Gradients come one parameter at a time and are not kept.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, get_args

import torch
from torch import Tensor

from ...ground.errors import SpiritlevelError, is_out_of_memory
from ...model import batches as _batches
from ...model.arithmetic import full_precision
from ...model.autograd_graph import lacks_second_derivative
from ...model.batches import BatchLocation
from ...model.model_state import twice_differentiable
from ...model.surface import Surface
from ...records.measurements import Cost
from . import trusted_derivatives
from .chunk_products import ProductChoice, ProductMethod, make_products, product_of_hessian
from .parameter_space import ParameterSpace, parameter_groups, restricted_to

# On one sample too: what is a copy for several can be a view for one, with odd strides, for which
# torch's derivatives of batch norm are wrong (2.13). It has another direction, since one alone may
# miss a wrong part by chance.
LOOKS = (trusted_derivatives.SAMPLES, 1)
VECTORS = 4  # as large as the weights, at a time
PROBE_SAMPLES = 2  # on which a method is tried

Parts = dict[str, Tensor]


def untrusted_parameter(
    surface: Surface, method: ProductMethod, batch: Any, *, at_once: int, seed: int
) -> str | None:
    """The first parameter whose part of a product differs from differences of the gradient.

    `at_once` samples run together; `seed` gives the direction.
    """
    parts = trusted_derivatives.pieces(surface.received(batch), at_once)
    start = {name: p.detach() for name, p in surface.parameters.items()}
    # A parameter without effect, like a key's bias under softmax, has a gradient of which only the
    # rounding of the terms that cancel is left. These may be as large as any other gradient.
    steps, tolerance = trusted_derivatives.steps_of(surface)
    rounding: Mapping[str, float] = {}  # looked at where a gap is to be explained
    along = trusted_derivatives.Directions(surface, seed)
    claimed = _product(surface, method, parts, along)
    suspects = dict.fromkeys(start, math.inf)  # with the gap of the step before
    for step in steps:
        change = _change_of_gradient(surface, parts, along, step)
        judged = sorted(suspects)
        lengths = _lengths(change, claimed, 2 * step, judged)
        del change  # before the next step makes another one
        for name, (gap, *sizes) in zip(judged, lengths, strict=True):
            # noise above the last gap would hide the difference, not explain it
            beyond = gap - tolerance * max(sizes)
            if beyond > 0.0 and not rounding:
                rounding = _gradient_rounding(surface, parts)
            if beyond <= 0.0 or beyond <= _noise(rounding, name, step, steps[0]) < suspects[name]:
                del suspects[name]
            else:
                suspects[name] = gap
        if not suspects:
            return None
    return next(name for name in start if name in suspects)


def _noise(rounding: Mapping[str, float], name: str, step: float, longest: float) -> float:
    """What rounding of gradients may add to a difference with this step."""
    return rounding[name] / step + max(rounding.values()) / longest


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
    return space.split(products["hessian"](space, vector[None]).rows[0])


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


def _lengths(change: Parts, claimed: Parts, step: float, names: list[str]) -> list[list[float]]:
    """The length of (change / step − claimed), of change / step and of claimed, by name.

    They are read at once, since a GPU would wait for each. `change` is used up; parts that are 0
    are missing.
    """
    lengths = dict.fromkeys(names, (0.0, 0.0, 0.0))
    both = [name for name in names if name in change and name in claimed]
    if both:
        differences, products = [change[n] for n in both], [claimed[n] for n in both]
        torch._foreach_div_(differences, step)
        sizes = [torch._foreach_norm(differences), torch._foreach_norm(products)]
        torch._foreach_sub_(differences, products)
        sizes.insert(0, torch._foreach_norm(differences))
        rows = torch.stack([torch.stack(each).double() for each in sizes], dim=1).tolist()
        lengths |= dict(zip(both, rows, strict=True))
    for name in lengths.keys() - set(both):
        if name in change:
            size = float(change[name].norm()) / step
            lengths[name] = (size, size, 0.0)
        elif name in claimed:
            size = float(claimed[name].norm())
            lengths[name] = (size, 0.0, size)
    return [list(lengths[name]) for name in names]


def choose_method(
    surface: Surface, at_once: int = trusted_derivatives.SAMPLES, wanted: ProductChoice = "auto"
) -> ProductMethod:
    """The first method that the model supports and whose products are right, on a few samples.

    `wanted` allows one method alone. Differences of gradients, which come last, take least memory.

    At most `at_once` samples run together, as many as in the products that follow. The method is
    known from an earlier call if the model's code still does the same.
    """
    at_once = min(at_once, LOOKS[0])
    methods = get_args(ProductMethod) if wanted == "auto" else (wanted,)
    key = ("product method", surface.dtype, at_once, methods, surface.first_run())
    return surface.findings.recall(key, lambda: _find_method(surface, at_once, methods))


def _find_method(
    surface: Surface, at_once: int, methods: Sequence[ProductMethod] = get_args(ProductMethod)
) -> ProductMethod:
    with contextlib.suppress(RuntimeError, NotImplementedError):  # no gradient: no method below
        look = functools.partial(_check_gradient, surface, at_once)
        trusted_derivatives.beside_the_parameters(surface, 0, look)
    failures = []
    for method in methods:
        try:
            with full_precision(), twice_differentiable():
                for names in parameter_groups(surface):
                    with restricted_to(surface, names):
                        _try_method(surface, method, min(at_once, PROBE_SAMPLES))
                if method == "difference":
                    return method
                untrusted = _untrusted_by_looks(surface, method, at_once)
        except (RuntimeError, NotImplementedError) as error:
            if is_out_of_memory(error) and method == methods[-1]:
                raise
            failures.append(f"{method}: {str(error).strip().splitlines()[0]}")
            continue
        if untrusted is None:
            return method
        failures.append(f"{method}: wrong for {untrusted!r}")
    raise SpiritlevelError(
        "No product with the Hessian of this model can be formed, not even from its gradients. "
        f"Tried {'; '.join(failures)}. Check that loss.backward() works on it."
    )


def _check_gradient(surface: Surface, at_once: int) -> None:
    for count in LOOKS if at_once > 1 else LOOKS[:1]:
        batch = surface.first_samples(count)
        trusted_derivatives.check_gradient(surface, batch, BatchLocation(0), at_once=at_once)


def _try_method(surface: Surface, method: ProductMethod, num_samples: int) -> None:
    """Raise what the model raises if it does not support a method."""
    if method == "reverse":  # the products that are compared next show all else
        _check_second_derivative(surface, surface.first_samples(1))
        return
    batch, where = surface.first_samples(num_samples), BatchLocation(0)
    space = ParameterSpace(surface)
    ones = torch.ones(1, space.size, dtype=space.dtype, device=space.device)
    _, product = make_products(surface, batch, where, ("hessian",), space.names, method)
    product["hessian"](space, ones)


def _untrusted_by_looks(surface: Surface, method: ProductMethod, at_once: int) -> str | None:
    """A parameter whose products by this method are not differences of gradients, or None."""

    def look() -> str | None:
        for seed, count in enumerate(LOOKS):
            batch = surface.first_samples(count)
            found = untrusted_parameter(surface, method, batch, at_once=at_once, seed=seed)
            if found is not None:
                return found
        return None

    return trusted_derivatives.beside_the_parameters(surface, 0, look)


def _check_second_derivative(surface: Surface, batch: Any) -> None:
    """Raise RuntimeError if a second backward would miss a part of the derivative."""
    with torch.enable_grad():
        outputs, _ = surface.outputs(batch, where=BatchLocation(0))
        leaves = list(surface.parameters.values())
        gradients = torch.autograd.grad(outputs.sum(), leaves, create_graph=True, allow_unused=True)
    surface.cost += Cost(backwards=len(outputs))
    if lacks_second_derivative(gradients):
        raise RuntimeError("a function in the model is differentiable only once")
