"""Products with the Hessian, its residual H − GGN, and the GGN, over all data.

Three ways give the same numbers:

reverse      backward of the gradient. The gradient's graph of a chunk serves every vector.
forward      a forward derivative of the gradient: needs no second backward.
difference   (∇L(θ + hv) − ∇L(θ − hv)) / 2h: needs a gradient only. h is the cube root of the
             precision, so about a third of the digits is lost: 1e-5 in float64, 1e-2 in float32,
             and more where a ReLU switches within the step.

The residual is Σ_c ∂ℓ/∂z_c ∇²z_c: the Hessian of ⟨g, z⟩ with g = ∂ℓ/∂z held fixed. So its product
costs what one of the Hessian costs, and nothing is subtracted.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.func import grad, jvp

from ...errors import SpiritlevelError
from ...model import batches as _batches
from ...model.layer_hooks import lacks_second_derivative
from ...model.model_state import full_precision, twice_differentiable
from ...model.surface import Place, Surface
from ...results import Cost

Operator = Literal["hessian", "residual", "ggn"]
Way = Literal["reverse", "forward", "difference"]
One = Callable[["Space", Tensor], Tensor]  # (block of parameters, flat vector) -> flat vector
Product = Callable[["Space", Tensor], Tensor]  # the same for the rows of a matrix

PROBE_SAMPLES = 2
TOGETHER = 8  # vectors that one backward takes on a GPU, which has nothing to do while Python asks


class Space:
    """Some parameters as one vector, in the order of their names."""

    def __init__(self, surface: Surface, names: Sequence[str] | None = None) -> None:
        """All measured parameters if no names are given."""
        self.names = tuple(surface.parameters if names is None else names)
        self.shapes = [surface.parameters[name].shape for name in self.names]
        self.dtypes = [surface.parameters[name].dtype for name in self.names]
        ends = [0]
        for shape in self.shapes:
            ends.append(ends[-1] + shape.numel())
        self.size = ends[-1]
        self.slices = {
            name: slice(a, b) for name, a, b in zip(self.names, ends, ends[1:], strict=False)
        }
        self.dtype, self.device = surface.dtype, surface.device

    def split(self, vector: Tensor) -> dict[str, Tensor]:
        """By name, in the parameters' shapes and types, without a copy where they are the same.

        Dimensions before the last stay in front.
        """
        if len(set(self.dtypes)) == 1:
            vector = vector.to(self.dtypes[0])  # all at once
        kinds = zip(self.slices.items(), self.shapes, self.dtypes, strict=True)
        front = vector.shape[:-1]
        return {
            name: vector[..., part].view(front + shape).to(dtype)
            for (name, part), shape, dtype in kinds
        }

    def join(self, parts: Sequence[Tensor | None], front: Sequence[int] = ()) -> Tensor:
        """The inverse, for parts with these dimensions in front; None is zero."""
        flat = [
            torch.zeros(*front, shape.numel(), dtype=self.dtype, device=self.device)
            if values is None
            else values.reshape(*front, -1).to(self.dtype)
            for shape, values in zip(self.shapes, parts, strict=True)
        ]
        return torch.cat(flat, dim=-1)


@dataclasses.dataclass(frozen=True)
class Request:
    """Vectors to multiply by one operator, restricted to one block of parameters."""

    operator: Operator
    space: Space
    vectors: Tensor  # shape: (count, size)


class Products:
    """Products over the data of a surface, one pass for any number of requests."""

    def __init__(
        self, surface: Surface, *, chunk: int, way: Way | None = None, together: int | None = None
    ) -> None:
        """`way=None` takes the first of the three that the model admits.

        `together` bounds the vectors that one backward takes; None: several on a GPU, else one.
        """
        self.surface = surface
        self.chunk = chunk
        if way is not None and way not in get_args(Way):
            raise SpiritlevelError(
                f"The 'way' of Hessian products must be one of {', '.join(get_args(Way))}. "
                f"Got {way!r}."
            )
        self.way = way or choose_way(surface)
        self.together = together or self._choose_together()

    def _choose_together(self) -> int:
        """One where the CPU computes, and where an operation of the model cannot be batched."""
        if self.surface.device.type != "cuda" or self.way != "reverse":
            return 1
        batch, space = self.surface.first_samples(PROBE_SAMPLES), Space(self.surface)
        ones = torch.ones(2, space.size, dtype=space.dtype, device=space.device)
        try:
            with full_precision(), twice_differentiable():
                _, product = _make(
                    self.surface, batch, Place(0), ("hessian",), space.names, self.way, together=2
                )
                product["hessian"](space, ones)
        except RuntimeError:
            return 1
        return TOGETHER

    def multiply(self, requests: Sequence[Request]) -> list[Tensor]:
        """The products, averaged over the data of all processes; shapes as in the requests."""
        sums = [torch.zeros_like(r.vectors, dtype=torch.float64) for r in requests]
        total = torch.zeros((), dtype=torch.float64, device=self.surface.device)
        with self.surface.processes.together():
            for weight, products in self.by_chunk(requests):
                total += weight
                for held, found in zip(sums, products, strict=True):
                    held += found
        self.surface.processes.sum_(total, *sums)
        return [(held / total).to(r.vectors.dtype) for held, r in zip(sums, requests, strict=True)]

    def by_chunk(
        self, requests: Sequence[Request], *, chunk: int | None = None
    ) -> Iterator[tuple[float, list[Tensor]]]:
        """(weight, products not divided by it) of every chunk of this process's data."""
        size = min(self.chunk, chunk or self.chunk)
        operators = tuple(dict.fromkeys(request.operator for request in requests))
        names = {name: None for request in requests for name in request.space.names}
        for where, batch in self.surface.chunks(size):
            length = _batches.num_samples(batch)
            together = max(1, min(self.together, self.chunk // length))  # memory is for `chunk`
            with full_precision(), twice_differentiable():
                weight, product = _make(
                    self.surface, batch, where, operators, tuple(names), self.way, together
                )
                found = [product[r.operator](r.space, r.vectors) for r in requests]
                del product  # or its graph would live on while the next one is made
            count = sum(len(r.vectors) for r in requests) * length
            self.surface.cost += Cost(products=count)
            yield weight, found


def choose_way(surface: Surface) -> Way:
    """The first way that the model admits, tried on two samples."""
    batch = surface.first_samples(PROBE_SAMPLES)
    space = Space(surface)
    ones = torch.ones(space.size, dtype=space.dtype, device=space.device)
    failures = []
    for way in get_args(Way):
        try:
            with full_precision(), twice_differentiable():
                if way == "reverse":
                    _check_second_derivative(surface, batch)
                _, product = _make(surface, batch, Place(0), ("hessian",), space.names, way)
                product["hessian"](space, ones[None])
            return way
        except (RuntimeError, NotImplementedError) as error:
            failures.append(f"{way}: {str(error).strip().splitlines()[0]}")
    raise SpiritlevelError(
        "No product with the Hessian of this model can be formed, not even from its gradients. "
        f"Tried {'; '.join(failures)}. Check that loss.backward() works on it."
    )


def _check_second_derivative(surface: Surface, batch: Any) -> None:
    """Raise RuntimeError where a second backward would miss a part of the derivative."""
    with torch.enable_grad():
        outputs, _ = surface.outputs(batch, where=Place(0))
        leaves = list(surface.parameters.values())
        gradients = torch.autograd.grad(outputs.sum(), leaves, create_graph=True, allow_unused=True)
    surface.cost += Cost(backwards=len(outputs))
    if lacks_second_derivative(gradients):
        raise RuntimeError("a function in the model is differentiable only once")


def _make(
    surface: Surface,
    batch: Any,
    where: Place,
    operators: tuple[Operator, ...],
    names: tuple[str, ...],
    way: Way,
    together: int = 1,
) -> tuple[float, dict[Operator, Product]]:
    """Weight of a chunk, and a function for each operator."""
    if way == "reverse":
        return _reverse(surface, batch, where, operators, names, together)
    return _functional(surface, batch, where, operators, way)


def _each(one: One) -> Product:
    """Row after row."""
    return lambda space, vectors: torch.stack([one(space, v) for v in vectors])


def _reverse(
    surface: Surface,
    batch: Any,
    where: Place,
    operators: tuple[Operator, ...],
    names: tuple[str, ...],
    together: int,
) -> tuple[float, dict[Operator, Product]]:
    """Graphs of gradients, built once for all vectors."""
    parameters = {name: surface.parameters[name] for name in names}
    leaves = list(parameters.values())
    with torch.enable_grad():
        outputs, targets = surface.outputs(batch, where=where)
        wide = outputs.double()
        total = surface.loss.values(wide, targets).sum()
        weight = float(surface.loss.weights(outputs.detach(), targets).double().sum())
        found: dict[Operator, Product] = {}
        for operator in operators:
            surface.cost += Cost(backwards=len(outputs))
            if operator == "ggn":
                found[operator] = _each(_reverse_ggn(surface, outputs, targets, parameters))
                continue
            value = total
            if operator == "residual":
                (signal,) = torch.autograd.grad(total, wide, retain_graph=True)
                value = (wide * signal.detach()).sum()
            gradients = torch.autograd.grad(value, leaves, create_graph=True, allow_unused=True)
            by_name = dict(zip(names, gradients, strict=True))
            found[operator] = _second_backward(by_name, parameters, together)
    return weight, found


def _second_backward(
    gradients: Mapping[str, Tensor | None],
    parameters: Mapping[str, torch.nn.Parameter],
    together: int,
) -> Product:
    def several(space: Space, vectors: Tensor) -> Tensor:
        pairs = [(gradients[name], v) for name, v in space.split(vectors).items()]
        live = [(g, v) for g, v in pairs if g is not None and g.requires_grad]
        if not live:  # outputs that are linear in these parameters, under a linear loss
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
) -> One:
    """Jv is the derivative of ⟨Jᵀu, v⟩ in u; then A, then one more backward."""
    curvature = surface.loss.curvature(outputs.detach().double(), targets)
    u = torch.zeros_like(outputs, requires_grad=True)
    leaves = list(parameters.values())
    pulled = torch.autograd.grad(outputs, leaves, u, create_graph=True, allow_unused=True)
    by_name = dict(zip(parameters, pulled, strict=True))

    def product(space: Space, vector: Tensor) -> Tensor:
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


def _functional(
    surface: Surface,
    batch: Any,
    where: Place,
    operators: tuple[Operator, ...],
    way: Way,
) -> tuple[float, dict[Operator, Product]]:
    """The model as a function of its parameters; each vector runs it anew."""
    with torch.no_grad():
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

    derivative = _forward_derivative if way == "forward" else _central_difference
    gradient = grad if way == "forward" else _plain_gradient

    def product(operator: Operator) -> One:
        def multiply(space: Space, vector: Tensor) -> Tensor:
            start = {name: surface.parameters[name].detach() for name in space.names}
            direction = space.split(vector)
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


Parts = dict[str, Tensor]


def _plain_gradient(value: Callable[[Parts], Tensor]) -> Callable[[Parts], Parts]:
    """By backward as users know it: every function that has a gradient takes part."""

    def gradient(start: Parts) -> Parts:
        leaves = {name: part.detach().requires_grad_() for name, part in start.items()}
        with torch.enable_grad():
            total = value(leaves)
        found = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
        return {
            name: torch.zeros_like(leaf) if g is None else g
            for (name, leaf), g in zip(leaves.items(), found, strict=True)
        }

    return gradient


def _forward_derivative(function: Callable[[Parts], Parts], start: Parts, along: Parts) -> Parts:
    tangents: Parts = jvp(function, (start,), (along,))[1]
    return {name: t.detach() for name, t in tangents.items()}


def _central_difference(function: Callable[[Parts], Parts], start: Parts, along: Parts) -> Parts:
    """A step as long as the cube root of the precision times the parameters' own length."""
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
