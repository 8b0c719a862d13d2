"""Which method of forming products with the Hessian a model supports, and gets right."""

from __future__ import annotations

import contextlib
import functools
from typing import Any, get_args

import torch

from ...errors import SpiritlevelError, is_out_of_memory
from ...model.arithmetic import full_precision
from ...model.autograd_graph import lacks_second_derivative
from ...model.batches import BatchLocation
from ...model.model_state import twice_differentiable
from ...model.surface import Surface
from ...records import Cost
from . import trust
from .chunk_products import ProductMethod, make_products
from .derivatives import plain_gradient
from .parameter_space import ParameterSpace

PROBE_SAMPLES = 2

# On one sample too: what is a copy for several can be a view for one, with odd strides, for which
# torch's derivatives of batch norm are wrong (2.13).
COUNTS = (trust.SAMPLES, 1)


def choose_method(surface: Surface) -> ProductMethod:
    """The first method that the model supports and whose products are right, on a few samples.

    It is known from an earlier call if the model's code still does the same.
    """
    key = ("product method", surface.dtype, surface.first_run())
    return surface.known.recall(key, lambda: _find_method(surface))


def _find_method(surface: Surface) -> ProductMethod:
    with contextlib.suppress(RuntimeError, NotImplementedError):  # no gradient: no method below
        trust.beside_the_parameters(surface, 0, functools.partial(_check_gradient, surface))
    failures = []
    for method in get_args(ProductMethod):
        try:
            with full_precision(), twice_differentiable():
                _try_method(surface, method)
                if method == "difference":
                    return method
                untrusted = _untrusted_parameter(surface, method)
        except (RuntimeError, NotImplementedError) as error:
            if is_out_of_memory(error):
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


def _check_gradient(surface: Surface) -> None:
    for count in COUNTS:
        trust.check_gradient(surface, surface.first_samples(count), BatchLocation(0))


def _try_method(surface: Surface, method: ProductMethod) -> None:
    """Raise what the model raises if it does not support a method."""
    batch, space = surface.first_samples(PROBE_SAMPLES), ParameterSpace(surface)
    ones = torch.ones(1, space.size, dtype=space.dtype, device=space.device)
    if method == "reverse":
        _check_second_derivative(surface, batch)
    _, product = make_products(surface, batch, BatchLocation(0), ("hessian",), space.names, method)
    product["hessian"](space, ones)


def _untrusted_parameter(surface: Surface, method: ProductMethod) -> str | None:
    """A parameter whose products by this method are not differences of gradients, or None."""

    def look(count: int) -> str | None:
        batch = surface.first_samples(count)
        with torch.enable_grad():
            outputs, targets = surface.outputs(batch, where=BatchLocation(0))
        rounding = trust.gradient_rounding(surface, outputs)
        del outputs  # and its graph: the products have a larger one
        names = tuple(surface.parameters)
        _, product = make_products(surface, batch, BatchLocation(0), ("hessian",), names, method)
        model = surface.function(batch)
        gradient = plain_gradient(
            lambda p: surface.loss.values(model(p).double(), targets).sum(),
            within=surface.substituting,
        )
        return trust.untrusted_parameter(
            surface,
            lambda space, vector: product["hessian"](space, vector[None])[0],
            gradient,
            rounding,
            count,
            directions=trust.DIRECTIONS if count > 1 else 1,
        )

    for count in COUNTS:
        found = trust.beside_the_parameters(surface, 0, functools.partial(look, count))
        if found is not None:
            return found
    return None


def _check_second_derivative(surface: Surface, batch: Any) -> None:
    """Raise RuntimeError if a second backward would miss a part of the derivative."""
    with torch.enable_grad():
        outputs, _ = surface.outputs(batch, where=BatchLocation(0))
        leaves = list(surface.parameters.values())
        gradients = torch.autograd.grad(outputs.sum(), leaves, create_graph=True, allow_unused=True)
    surface.cost += Cost(backwards=len(outputs))
    if lacks_second_derivative(gradients):
        raise RuntimeError("a function in the model is differentiable only once")
