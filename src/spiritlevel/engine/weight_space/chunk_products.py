"""Products with the Hessian, its residual H − GGN, and the GGN, on one chunk of data.

Three methods give the same numbers, the first two up to rounding:

reverse      backward of the gradient. The gradient's graph of a chunk serves every vector.
forward      a forward derivative of the gradient: needs no second backward.
difference   (∇L(θ + sv) − ∇L(θ − sv)) / 2s: needs a gradient only, and tells its own error, which
             leaves half of the digits (`differences`). A float32 model is held in float64 for it,
             unless it is too large or refuses that.

The residual is Σ_c ∂ℓ/∂z_c ∇²z_c: the Hessian of ⟨g, z⟩ with g = ∂ℓ/∂z held fixed. So its product
costs as much as one with the Hessian, and nothing is subtracted.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.func import grad, jvp

from ...model.batches import BatchLocation
from ...model.convolutions import UsualConvolutions
from ...model.surface import Surface
from ...records.measurements import Cost
from . import trusted_derivatives
from .differences import Difference, Differences, Parts, enough_in, length_of
from .parameter_space import ParameterSpace

Operator = Literal["hessian", "residual", "ggn"]
ProductMethod = Literal["reverse", "forward", "difference"]
ProductChoice = Literal["auto", "reverse", "forward", "difference"]


class Images(NamedTuple):
    """Products with vectors, and where they are differences what these may be off."""

    rows: Tensor
    gaps: Tensor | None = None  # the rows minus what another step gives
    rounding: Tensor | None = None  # the length of what rounding may change in each row


VectorProduct = Callable[[ParameterSpace, Tensor], Images]  # of one flat vector
RowProducts = Callable[[ParameterSpace, Tensor], Images]  # of every row of a matrix


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


def make_products(
    surface: Surface,
    batch: Any,
    where: BatchLocation,
    operators: tuple[Operator, ...],
    names: tuple[str, ...],
    method: ProductMethod,
    together: int = 1,
    known: dict[Hashable, Differences] | None = None,
) -> tuple[float, dict[Operator, RowProducts]]:
    """The weight of a chunk, and the products with each operator.

    `known` keeps what differences have found out, for later passes over the same chunks.
    """
    if method == "reverse":
        return _reverse(surface, batch, where, operators, names, together)
    return _functional(surface, batch, where, operators, method, {} if known is None else known)


def _each(one: VectorProduct) -> RowProducts:
    """Multiply the rows one after another."""

    def each(space: ParameterSpace, vectors: Tensor) -> Images:
        found = [one(space, v) for v in vectors]
        if found[0].gaps is None:
            return Images(_stacked([each.rows for each in found]))
        return Images(*(_stacked(list(part)) for part in zip(*found, strict=True)))

    return each


def _stacked(rows: list[Tensor]) -> Tensor:
    return rows[0][None] if len(rows) == 1 else torch.stack(rows)


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
        outputs, targets = _outputs(surface, batch, where)
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


def _outputs(surface: Surface, batch: Any, where: BatchLocation) -> tuple[Tensor, Tensor]:
    """Outputs and targets, in a graph that is differentiated twice."""
    on_gpu = surface.device.type == "cuda"
    with UsualConvolutions() if on_gpu else contextlib.nullcontext():
        return surface.outputs(batch, where=where)


def product_of_hessian(
    surface: Surface, batch: Any, where: BatchLocation, along: Callable[[str, Tensor], Tensor]
) -> dict[str, Tensor]:
    """One product by a second backward, in as little memory as it takes; 0 is left out.

    `along` draws the direction of a parameter. The gradient is given up part by part for its slope
    along the direction, so that only one of the two is held, and the graph goes with the backward.
    """
    names, leaves = list(surface.parameters), list(surface.parameters.values())
    with torch.enable_grad():
        outputs, targets = _outputs(surface, batch, where)
        total = surface.loss.values(outputs.double(), targets).sum()
        surface.cost += Cost(backwards=len(outputs))
        found = torch.autograd.grad(total, leaves, create_graph=True, allow_unused=True)
        gradients: list[Tensor | None] = [*found]
        del outputs, total, found
        slopes = []
        for i, (name, leaf) in enumerate(zip(names, leaves, strict=True)):
            v, gradient, gradients[i] = along(name, leaf.detach()), gradients[i], None
            if gradient is not None and gradient.requires_grad:
                slopes.append((gradient * v).sum())
            del v, gradient
    if not slopes:  # the outputs are linear in the parameters, and so is the loss
        return {}
    second = torch.autograd.grad(slopes, leaves, allow_unused=True)
    return {name: part for name, part in zip(names, second, strict=True) if part is not None}


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

    def product(space: ParameterSpace, vectors: Tensor) -> Images:
        found = [several(space, v) for v in vectors.split(together)]
        return Images(found[0] if len(found) == 1 else torch.cat(found))

    return product


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

    def product(space: ParameterSpace, vector: Tensor) -> Images:
        pairs = [(by_name[name], v) for name, v in space.split(vector).items()]
        live = [(g, v) for g, v in pairs if g is not None and g.requires_grad]
        if not live:
            return Images(torch.zeros_like(vector))
        (pushed,) = torch.autograd.grad(
            [g for g, _ in live], u, [v for _, v in live], retain_graph=True
        )
        signal = curvature.apply(pushed.detach().double().flatten(1)).to(outputs.dtype)
        wanted = [parameters[name] for name in space.names]
        signal = signal.reshape(outputs.shape)
        back = torch.autograd.grad(outputs, wanted, signal, retain_graph=True, allow_unused=True)
        return Images(space.join(back))

    return product


def _precise(surface: Surface) -> Callable[[], contextlib.AbstractContextManager[None]]:
    """A context for differences of gradients: float64, if the model can be held in it."""
    if surface.dtype == torch.float64 or not trusted_derivatives.is_widened(surface):
        return contextlib.nullcontext
    if not surface.numbers.runs_in(torch.float64, surface.trial):
        return contextlib.nullcontext
    return functools.partial(surface.numbers.computing_in, torch.float64)


def sought(surface: Surface) -> float:
    """The error, relative to a product, at which a difference of gradients is good enough."""
    is_precise = _precise(surface) is not contextlib.nullcontext
    return enough_in(torch.float64 if is_precise else surface.dtype)


def _functional(
    surface: Surface,
    batch: Any,
    where: BatchLocation,
    operators: tuple[Operator, ...],
    method: ProductMethod,
    known: dict[Hashable, Differences],
) -> tuple[float, dict[Operator, RowProducts]]:
    """Products that run the model again, as a function of its parameters, for each vector."""
    by_difference = method == "difference"
    precise = _precise(surface) if by_difference else contextlib.nullcontext
    with precise(), torch.no_grad():
        batch = surface.received(batch)
        outputs, targets = surface.outputs(batch, where=where)
    weight = float(surface.loss.weights(outputs, targets).double().sum())
    curvature = surface.loss.curvature(outputs.double(), targets) if "ggn" in operators else None
    wide = outputs.double().requires_grad_()
    with torch.enable_grad():
        total = surface.loss.values(wide, targets).sum()
    (signal,) = torch.autograd.grad(total, wide)
    model, count = surface.function(batch), len(outputs)

    def run(p: Parts) -> Tensor:
        surface.cost += Cost(forwards=count if by_difference else 0)
        return model(p)

    def value(operator: Operator) -> Callable[[Parts], Tensor]:
        if operator == "residual":
            return lambda p: (run(p).double() * signal).sum()
        return lambda p: surface.loss.values(run(p).double(), targets).sum()

    def gradient(function: Callable[[Parts], Tensor]) -> Callable[[Parts], Parts]:
        if not by_difference:
            return grad(function)
        plain = plain_gradient(function, surface.substituting)

        def counted(start: Parts) -> Parts:
            surface.cost += Cost(backwards=count)
            return plain(start)

        return counted

    def product(operator: Operator) -> VectorProduct:
        def derivative(function: Callable[[Parts], Parts], start: Parts, v: Parts) -> Difference:
            if not by_difference:
                return Difference(forward_derivative(function, start, v))
            place = (operator, where, *start)
            return known.setdefault(place, Differences()).along(function, start, v)

        def multiply(space: ParameterSpace, vector: Tensor) -> Images:
            with precise():
                return multiplied(space, vector)

        def multiplied(space: ParameterSpace, vector: Tensor) -> Images:
            start = {name: surface.parameters[name].detach() for name in space.names}
            direction = {name: v.to(start[name].dtype) for name, v in space.split(vector).items()}
            if operator != "ggn":
                return images_of(space, derivative(gradient(value(operator)), start, direction))
            with torch.no_grad() if by_difference else contextlib.nullcontext():
                pushed = derivative(lambda p: {"z": run(p)}, start, direction)

            def pull(z: Tensor) -> Parts:
                assert curvature is not None
                weighted = curvature.apply(z.double().flatten(1)).to(outputs.dtype)
                weighted = weighted.reshape(outputs.shape)
                back = gradient(lambda p: (run(p) * weighted).sum())(start)
                return {name: back[name].detach() for name in space.names}

            return images_of(space, _pulled(pushed, pull))

        return multiply

    return weight, {operator: _each(product(operator)) for operator in operators}


def _pulled(pushed: Difference, pull: Callable[[Tensor], Parts]) -> Difference:
    """A linear function of a difference of outputs."""
    value = pull(pushed.value["z"])
    if pushed.gap is None:
        return Difference(value)
    share = pushed.rounding / (length_of(pushed.value) or 1.0)
    return Difference(value, pull(pushed.gap["z"]), share * length_of(value))


def images_of(space: ParameterSpace, found: Difference) -> Images:
    """A derivative as a row, with what it may be off if it is a difference."""
    row = space.join(list(found.value.values()))
    if found.gap is None:
        return Images(row)
    gap = space.join(list(found.gap.values()))
    return Images(row, gap, torch.tensor(found.rounding, device=row.device, dtype=torch.float64))
