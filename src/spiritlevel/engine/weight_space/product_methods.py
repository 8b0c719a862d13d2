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
from . import trusted_derivatives
from .chunk_products import ProductMethod, make_products
from .groups import groups, only
from .parameter_space import ParameterSpace
from .product_check import untrusted_parameter

PROBE_SAMPLES = 2


def choose_method(surface: Surface, at_once: int = trusted_derivatives.SAMPLES) -> ProductMethod:
    """The first method that the model supports and whose products are right, on a few samples.

    At most `at_once` samples run together, as many as in the products that follow. The method is
    known from an earlier call if the model's code still does the same.
    """
    at_once = min(at_once, trusted_derivatives.SAMPLES)
    key = ("product method", surface.dtype, at_once, surface.first_run())
    return surface.findings.recall(key, lambda: _find_method(surface, at_once))


def _find_method(surface: Surface, at_once: int) -> ProductMethod:
    with contextlib.suppress(RuntimeError, NotImplementedError):  # no gradient: no method below
        look = functools.partial(_check_gradient, surface, at_once)
        trusted_derivatives.beside_the_parameters(surface, 0, look)
    failures = []
    for method in get_args(ProductMethod):
        try:
            with full_precision(), twice_differentiable():
                for names in groups(surface):
                    with only(surface, names):
                        _try_method(surface, method, min(at_once, PROBE_SAMPLES))
                if method == "difference":
                    return method
                untrusted = _untrusted_parameter(surface, method, at_once)
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


def _check_gradient(surface: Surface, at_once: int) -> None:
    for count in (
        (trusted_derivatives.SAMPLES, 1) if at_once > 1 else (trusted_derivatives.SAMPLES,)
    ):
        batch = surface.first_samples(count)
        trusted_derivatives.check_gradient(surface, batch, BatchLocation(0), at_once=at_once)


def _try_method(surface: Surface, method: ProductMethod, num_samples: int) -> None:
    """Raise what the model raises if it does not support a method."""
    batch, where = surface.first_samples(num_samples), BatchLocation(0)
    if method == "reverse":  # the products that are compared next show all else
        _check_second_derivative(surface, batch)
        return
    space = ParameterSpace(surface)
    ones = torch.ones(1, space.size, dtype=space.dtype, device=space.device)
    _, product = make_products(surface, batch, where, ("hessian",), space.names, method)
    product["hessian"](space, ones)


def _untrusted_parameter(surface: Surface, method: ProductMethod, at_once: int) -> str | None:
    """A parameter whose products by this method are not differences of gradients, or None."""

    def look(count: int, seed: int) -> str | None:
        batch = surface.first_samples(count)
        return untrusted_parameter(surface, method, batch, at_once=at_once, seed=seed)

    # On one sample too: what is a copy for several can be a view for one, with odd strides, for
    # which torch's derivatives of batch norm are wrong (2.13). It has another direction, since one
    # alone may miss a wrong part by chance.
    for seed, count in enumerate((trusted_derivatives.SAMPLES, 1)):
        found = trusted_derivatives.beside_the_parameters(
            surface, 0, functools.partial(look, count, seed)
        )
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
