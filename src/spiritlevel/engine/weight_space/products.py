"""Products with the Hessian, its residual H − GGN, and the GGN, over all data.

Three methods give the same numbers:

reverse      backward of the gradient. The gradient's graph of a chunk serves every vector.
forward      a forward derivative of the gradient: needs no second backward.
difference   (∇L(θ + hv) − ∇L(θ − hv)) / 2h: needs a gradient only. h is the cube root of the
             precision, so about a third of the digits is lost: errors of 1e-5 in float64, and more
             where a ReLU switches within the step. In float32 they are 1e-2, so a float32 model is
             held in float64 for it, unless it is too large or refuses that.

The residual is Σ_c ∂ℓ/∂z_c ∇²z_c: the Hessian of ⟨g, z⟩ with g = ∂ℓ/∂z held fixed. So its product
costs as much as one with the Hessian, and nothing is subtracted.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.func import grad

from ...errors import SpiritlevelError, is_out_of_memory
from ...model import batches as _batches
from ...model.autograd_graph import lacks_second_derivative
from ...model.batches import BatchLocation
from ...model.model_state import full_precision, twice_differentiable
from ...model.surface import Surface
from ...records import Cost
from . import trust
from .derivatives import central_difference, forward_derivative, plain_gradient
from .parameter_space import ParameterSpace

Operator = Literal["hessian", "residual", "ggn"]
ProductMethod = Literal["reverse", "forward", "difference"]
VectorProduct = Callable[[ParameterSpace, Tensor], Tensor]  # of one flat vector
RowProducts = Callable[[ParameterSpace, Tensor], Tensor]  # of every row of a matrix

PROBE_SAMPLES = 2
# Vectors per backward where it would otherwise wait for Python: on a GPU, and in small models.
TOGETHER = 8
SMALL, TOGETHER_IF_SMALL = 20_000, 32  # parameters, and vectors up to there


@dataclasses.dataclass(frozen=True)
class Request:
    """Vectors to multiply by one operator, restricted to one block of parameters."""

    operator: Operator
    space: ParameterSpace
    vectors: Tensor  # shape: (count, size)


class Products:
    """Products over the data of a surface, in one pass for any number of requests."""

    def __init__(
        self,
        surface: Surface,
        *,
        chunk: int,
        method: ProductMethod | None = None,
        together: int | None = None,
    ) -> None:
        """`method=None` takes the first of the three that the model supports.

        `together` is the number of vectors per backward; None: several on a GPU and in a small
        model, otherwise one.
        """
        self.surface = surface
        self.chunk = chunk
        if method is not None and method not in get_args(ProductMethod):
            raise SpiritlevelError(
                "The 'method' argument of Products must be one of "
                f"{', '.join(get_args(ProductMethod))}. Got {method!r}. Leave it out to take the "
                "first that the model supports."
            )
        self.method = method or choose_method(surface)
        self.together = together or self._choose_together()

    def _choose_together(self) -> int:
        """1 if a backward is worth more than Python, or an operation cannot be batched."""
        space = ParameterSpace(self.surface)
        waits = self.surface.device.type == "cuda" or space.size <= SMALL
        if self.method != "reverse" or not waits:
            return 1
        batch = self.surface.first_samples(PROBE_SAMPLES)
        ones = torch.ones(2, space.size, dtype=space.dtype, device=space.device)
        try:
            with full_precision(), twice_differentiable():
                _, product = _make(
                    self.surface,
                    batch,
                    BatchLocation(0),
                    ("hessian",),
                    space.names,
                    self.method,
                    together=2,
                )
                product["hessian"](space, ones)
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            return 1
        return TOGETHER_IF_SMALL if space.size <= SMALL else TOGETHER

    def multiply(self, requests: Sequence[Request]) -> list[Tensor]:
        """The products, averaged over the data of all processes; shapes as in the requests."""
        sums = [torch.zeros_like(r.vectors, dtype=torch.float64) for r in requests]
        total = torch.zeros((), dtype=torch.float64, device=self.surface.device)
        with self.surface.processes.together():
            for weight, products in self.by_chunk(requests):
                total += weight
                for product_sum, product in zip(sums, products, strict=True):
                    product_sum += product
        self.surface.processes.sum_(total, *sums)
        return [
            (product_sum / total).to(request.vectors.dtype)
            for product_sum, request in zip(sums, requests, strict=True)
        ]

    def by_chunk(
        self, requests: Sequence[Request], *, chunk: int | None = None
    ) -> Iterator[tuple[float, list[Tensor]]]:
        """(weight, products not divided by it) for every chunk of this process's data."""
        size = min(self.chunk, chunk or self.chunk)
        operators = tuple(dict.fromkeys(request.operator for request in requests))
        names = {name: None for request in requests for name in request.space.names}
        for where, batch in self.surface.chunks(size):
            length = _batches.num_samples(batch)
            together = max(
                1, min(self.together, self.chunk // length)
            )  # memory is planned for `chunk` samples
            with full_precision(), twice_differentiable():
                weight, product = _make(
                    self.surface, batch, where, operators, tuple(names), self.method, together
                )
                products = [product[r.operator](r.space, r.vectors) for r in requests]
                del product  # free its graph before the next one is made
            count = sum(len(r.vectors) for r in requests) * length
            self.surface.cost += Cost(products=count)
            yield weight, products


def choose_method(surface: Surface) -> ProductMethod:
    """The first method that the model supports and whose products are right, on two samples."""
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
    trust.check_gradient(surface, surface.first_samples(trust.SAMPLES), BatchLocation(0))


def _try_method(surface: Surface, method: ProductMethod) -> None:
    """Raise what the model raises if it does not support a method."""
    batch, space = surface.first_samples(PROBE_SAMPLES), ParameterSpace(surface)
    ones = torch.ones(1, space.size, dtype=space.dtype, device=space.device)
    if method == "reverse":
        _check_second_derivative(surface, batch)
    _, product = _make(surface, batch, BatchLocation(0), ("hessian",), space.names, method)
    product["hessian"](space, ones)


def _untrusted_parameter(surface: Surface, method: ProductMethod) -> str | None:
    """A parameter whose products by this method are not differences of gradients, or None."""

    def look() -> str | None:
        batch = surface.first_samples(trust.SAMPLES)
        names = tuple(surface.parameters)
        _, product = _make(surface, batch, BatchLocation(0), ("hessian",), names, method)
        with torch.enable_grad():
            outputs, targets = surface.outputs(batch, where=BatchLocation(0))
        model = surface.function(batch)
        gradient = plain_gradient(lambda p: surface.loss.values(model(p).double(), targets).sum())
        return trust.untrusted_parameter(
            surface,
            lambda space, vector: product["hessian"](space, vector[None])[0],
            gradient,
            trust.gradient_rounding(surface, outputs),
        )

    return trust.beside_the_parameters(surface, 0, look)


def _check_second_derivative(surface: Surface, batch: Any) -> None:
    """Raise RuntimeError if a second backward would miss a part of the derivative."""
    with torch.enable_grad():
        outputs, _ = surface.outputs(batch, where=BatchLocation(0))
        leaves = list(surface.parameters.values())
        gradients = torch.autograd.grad(outputs.sum(), leaves, create_graph=True, allow_unused=True)
    surface.cost += Cost(backwards=len(outputs))
    if lacks_second_derivative(gradients):
        raise RuntimeError("a function in the model is differentiable only once")


def _make(
    surface: Surface,
    batch: Any,
    where: BatchLocation,
    operators: tuple[Operator, ...],
    names: tuple[str, ...],
    method: ProductMethod,
    together: int = 1,
) -> tuple[float, dict[Operator, RowProducts]]:
    """The weight of a chunk, and the products with each operator."""
    if method == "reverse":
        return _reverse(surface, batch, where, operators, names, together)
    return _functional(surface, batch, where, operators, method)


def _each(one: VectorProduct) -> RowProducts:
    """Multiply the rows one after another."""
    return lambda space, vectors: torch.stack([one(space, v) for v in vectors])


def _reverse(
    surface: Surface,
    batch: Any,
    where: BatchLocation,
    operators: tuple[Operator, ...],
    names: tuple[str, ...],
    together: int,
) -> tuple[float, dict[Operator, RowProducts]]:
    """Products by a second backward, through graphs that are built once for all vectors."""
    parameters = {name: surface.parameters[name] for name in names}
    leaves = list(parameters.values())
    with torch.enable_grad():
        outputs, targets = surface.outputs(batch, where=where)
        wide = outputs.double()
        total = surface.loss.values(wide, targets).sum()
        weight = float(surface.loss.weights(outputs.detach(), targets).double().sum())
        products: dict[Operator, RowProducts] = {}
        for operator in operators:
            surface.cost += Cost(backwards=len(outputs))
            if operator == "ggn":
                products[operator] = _each(_reverse_ggn(surface, outputs, targets, parameters))
                continue
            value = total
            if operator == "residual":
                (signal,) = torch.autograd.grad(total, wide, retain_graph=True)
                value = (wide * signal.detach()).sum()
            gradients = torch.autograd.grad(value, leaves, create_graph=True, allow_unused=True)
            by_name = dict(zip(names, gradients, strict=True))
            products[operator] = _second_backward(by_name, parameters, together)
    return weight, products


def _second_backward(
    gradients: Mapping[str, Tensor | None],
    parameters: Mapping[str, torch.nn.Parameter],
    together: int,
) -> RowProducts:
    def several(space: ParameterSpace, vectors: Tensor) -> Tensor:
        pairs = [(gradients[name], v) for name, v in space.split(vectors).items()]
        live = [(g, v) for g, v in pairs if g is not None and g.requires_grad]
        if not live:  # the outputs are linear in these parameters, and so is the loss
            return torch.zeros_like(vectors)
        is_one = len(vectors) == 1
        second = torch.autograd.grad(
            [g for g, _ in live],
            [parameters[name] for name in space.names],
            [v[0] if is_one else v for _, v in live],
            retain_graph=True,
            allow_unused=True,
            is_grads_batched=not is_one,
        )
        return space.join(second, (len(vectors),))

    return lambda space, vectors: torch.cat([several(space, v) for v in vectors.split(together)])


def _reverse_ggn(
    surface: Surface,
    outputs: Tensor,
    targets: Tensor,
    parameters: dict[str, torch.nn.Parameter],
) -> VectorProduct:
    """JᵀA(Jv): Jv is the derivative of ⟨Jᵀu, v⟩ in u, and Jᵀ is one more backward."""
    curvature = surface.loss.curvature(outputs.detach().double(), targets)
    u = torch.zeros_like(outputs, requires_grad=True)
    leaves = list(parameters.values())
    pulled = torch.autograd.grad(outputs, leaves, u, create_graph=True, allow_unused=True)
    by_name = dict(zip(parameters, pulled, strict=True))

    def product(space: ParameterSpace, vector: Tensor) -> Tensor:
        pairs = [(by_name[name], v) for name, v in space.split(vector).items()]
        live = [(g, v) for g, v in pairs if g is not None and g.requires_grad]
        if not live:
            return torch.zeros_like(vector)
        (pushed,) = torch.autograd.grad(
            [g for g, _ in live], u, [v for _, v in live], retain_graph=True
        )
        signal = curvature.apply(pushed.detach().double().flatten(1)).to(outputs.dtype)
        wanted = [parameters[name] for name in space.names]
        signal = signal.reshape(outputs.shape)
        back = torch.autograd.grad(outputs, wanted, signal, retain_graph=True, allow_unused=True)
        return space.join(back)

    return product


def _precise(surface: Surface) -> Callable[[], contextlib.AbstractContextManager[None]]:
    """A context for differences of gradients: float64, if the model can be held in it."""
    size = sum(p.numel() for p in surface.model.parameters())
    if surface.dtype == torch.float64 or size > trust.MOST_PARAMETERS:
        return contextlib.nullcontext
    if not surface.runs_in(torch.float64):
        return contextlib.nullcontext
    return functools.partial(surface.computing_in, torch.float64)


def _functional(
    surface: Surface,
    batch: Any,
    where: BatchLocation,
    operators: tuple[Operator, ...],
    method: ProductMethod,
) -> tuple[float, dict[Operator, RowProducts]]:
    """Products that run the model again, as a function of its parameters, for each vector."""
    precise = _precise(surface) if method == "difference" else contextlib.nullcontext
    with precise(), torch.no_grad():
        batch = surface.received(batch)
        outputs, targets = surface.outputs(batch, where=where)
    weight = float(surface.loss.weights(outputs, targets).double().sum())
    curvature = surface.loss.curvature(outputs.double(), targets) if "ggn" in operators else None
    wide = outputs.double().requires_grad_()
    with torch.enable_grad():
        total = surface.loss.values(wide, targets).sum()
    (signal,) = torch.autograd.grad(total, wide)
    model = surface.function(batch)

    def value(operator: Operator) -> Callable[[dict[str, Tensor]], Tensor]:
        if operator == "residual":
            return lambda p: (model(p).double() * signal).sum()
        return lambda p: surface.loss.values(model(p).double(), targets).sum()

    derivative = forward_derivative if method == "forward" else central_difference
    gradient = grad if method == "forward" else plain_gradient

    def product(operator: Operator) -> VectorProduct:
        def multiply(space: ParameterSpace, vector: Tensor) -> Tensor:
            with precise():
                return multiplied(space, vector)

        def multiplied(space: ParameterSpace, vector: Tensor) -> Tensor:
            start = {name: surface.parameters[name].detach() for name in space.names}
            direction = {name: v.to(start[name].dtype) for name, v in space.split(vector).items()}
            if operator != "ggn":
                second = derivative(gradient(value(operator)), start, direction)
                return space.join(list(second.values()))
            assert curvature is not None
            pushed = derivative(lambda p: {"z": model(p)}, start, direction)["z"]
            pulled = curvature.apply(pushed.double().flatten(1)).to(outputs.dtype)
            pulled = pulled.reshape(outputs.shape)
            back = gradient(lambda p: (model(p) * pulled).sum())(start)
            return space.join([back[name].detach() for name in space.names])

        return multiply

    return weight, {operator: _each(product(operator)) for operator in operators}
