"""Products with the Hessian, its residual H − GGN, and the GGN, over all data."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import functools
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, get_args

import torch
from torch import Tensor

from ...ground.errors import is_out_of_memory
from ...ground.need import need, one_of, or_none
from ...model import batches as _batches
from ...model.arithmetic import full_precision
from ...model.batches import BatchLocation
from ...model.model_state import twice_differentiable
from ...model.output_checks import refuse_unless_counted
from ...model.surface import Surface
from ...records.measurements import Cost
from ..memory import VectorMemory, graphs_fit
from . import trusted_derivatives
from .chunk_products import Images, Operator, ProductMethod, RowProducts, make_products, sought
from .differences import Differences
from .long_rows import squared_norms
from .parameter_space import ParameterSpace, parameter_groups
from .product_methods import PROBE_SAMPLES, choose_method

# Vectors per backward where it would otherwise wait for Python: on a GPU, unless the model is very
# large, and in small models.
TOGETHER = 8
SMALL, TOGETHER_IF_SMALL = 20_000, 32  # parameters, and vectors up to there
LEAST_RESIDUAL = 4.0  # in errors of a product: with less, these would be most of it


@dataclasses.dataclass(frozen=True)
class Request:
    """Vectors to multiply by one operator, restricted to one block of parameters."""

    operator: Operator
    space: ParameterSpace
    vectors: Tensor  # shape: (count, size)


class AbstractProducts(abc.ABC):
    """Products over the data, and how accurate they were so far."""

    def __init__(self, surface: Surface, method: ProductMethod, memory: VectorMemory) -> None:
        """`memory` is what those who ask for products may hold of vectors."""
        self.surface, self.method, self.memory = surface, method, memory
        self.error = 0.0  # of the least accurate product so far, relative to it; of differences

    @abc.abstractmethod
    def keeping_graph(self) -> contextlib.AbstractContextManager[None]:
        """A context in which all products are of one matrix, so that graphs may be kept."""

    @property
    @abc.abstractmethod
    def sought(self) -> float:
        """The relative error at which a difference is good enough."""

    @abc.abstractmethod
    def images(self, requests: Sequence[Request]) -> list[Images]:
        """The products with what they may be off, averaged over the data of all processes."""

    def multiply(self, requests: Sequence[Request]) -> list[Tensor]:
        """The products alone; shapes as in the requests."""
        return [images.rows for images in self.images(requests)]

    def summed(self, total: Tensor, sums: Sequence[ImageSums]) -> list[Images]:
        """The products of all processes, divided by the weight of all data; float64."""
        stated = self.method == "difference"
        tensors = [each.rows for each in sums]
        if stated:
            tensors += [each.squares for each in sums] + [each.gaps for each in sums]
        self.surface.processes.sum_(total, *tensors)
        refuse_unless_counted(bool(total))
        if not stated:
            return [Images(each.rows / total) for each in sums]
        found = [
            Images(each.rows / total, each.gaps / total, each.squares.sqrt() / total)
            for each in sums
        ]
        self.keep_error(found)
        return found

    @property
    def least_residual(self) -> float:
        """Of an eigenvalue, relative to it: a smaller one cannot be shown by such products."""
        return LEAST_RESIDUAL * self.sought if self.method == "difference" else 0.0

    @property
    def remark(self) -> str:
        """How products were formed, where that is not exact up to rounding."""
        if self.method != "difference":
            return ""
        return f"products by differences of gradients, each off by at most {self.error:.1g} of it"

    def keep_error(self, found: Sequence[Images]) -> None:
        """Remember the error of the least accurate product."""
        for images in found:
            if images.gaps is not None and images.rounding is not None:
                errors = errors_of(images) / squared_norms(images.rows).sqrt()
                # a product that is 0 up to rounding has no relative error
                self.error = max(self.error, *errors[errors < 1.0].tolist(), 0.0)


class Products(AbstractProducts):
    """Products over the data of a surface, in one pass for any number of requests."""

    def __init__(
        self,
        surface: Surface,
        *,
        chunk: int,
        method: ProductMethod | None = None,
        together: int | None = None,
        memory: VectorMemory | None = None,
        kept: int | None = None,
    ) -> None:
        """`method=None` takes the first of the three that the model supports.

        `together` is the number of vectors per backward; None: several on a GPU and in a small
        model, otherwise one. `memory` is what those who ask for products may hold of vectors.
        `kept` is the number of samples whose graphs may be held at a time; None: those of a chunk.
        """
        methods = get_args(ProductMethod)
        first = "Leave it out to take the first that the model supports."
        wanted = f"one of {', '.join(methods)}"
        need("method", method, or_none(one_of(methods)), wanted, first, of="Products")
        method = method or choose_method(
            surface, trusted_derivatives.samples_at_once(surface, chunk)
        )
        super().__init__(surface, method, memory or VectorMemory())
        self.chunk = chunk
        self.kept = chunk if kept is None else kept
        self._together = together
        self._keeps = False
        self._held: list[tuple[Any, BatchLocation]] | None = None  # all chunks, if they are few
        self._graphs: dict[int, _Graph] = {}  # of these chunks, by their number
        self._known: dict[Hashable, Differences] = {}

    @contextlib.contextmanager
    def keeping_graph(self) -> Iterator[None]:
        """Build the gradient's graphs once for all products of the block.

        That needs data that has no more than `kept` samples, in one batch or several.
        """
        self._keeps = self.method == "reverse"
        try:
            yield
        finally:
            self._keeps, self._held, self._graphs = False, None, {}

    @functools.cached_property
    def together(self) -> int:
        """Vectors per backward: 1 if that is worth more than Python, or cannot be batched."""
        if self._together is not None:
            return self._together
        space = ParameterSpace(self.surface)
        on_gpu = self.surface.device.type == "cuda"
        waits = space.size <= SMALL or (on_gpu and len(parameter_groups(self.surface)) == 1)
        if self.method != "reverse" or not waits:
            return 1
        key = ("products together", self.surface.dtype, self.surface.first_run())
        if not self.surface.findings.recall(key, lambda: self._can_be_batched(space)):
            return 1
        return TOGETHER_IF_SMALL if space.size <= SMALL else TOGETHER

    def _can_be_batched(self, space: ParameterSpace) -> bool:
        batch = self.surface.first_samples(PROBE_SAMPLES)
        ones = torch.ones(2, space.size, dtype=space.dtype, device=space.device)
        try:
            with full_precision(), twice_differentiable():
                _, product = make_products(
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
            return False
        return True

    @functools.cached_property
    def sought(self) -> float:
        """The relative error at which a difference is good enough."""
        return sought(self.surface)

    def images(self, requests: Sequence[Request]) -> list[Images]:
        """The products, averaged over the data of all processes; shapes as in the requests."""
        sums = [ImageSums(r.vectors) for r in requests]
        total = torch.zeros((), dtype=torch.float64, device=self.surface.device)
        with self.surface.processes.together():
            for weight, products in self.by_chunk(requests):
                total += weight
                for image_sums, images in zip(sums, products, strict=True):
                    image_sums.add(images)
        found = self.summed(total, sums)
        return [
            images._replace(rows=images.rows.to(request.vectors.dtype))
            for images, request in zip(found, requests, strict=True)
        ]

    def by_chunk(
        self, requests: Sequence[Request], *, chunk: int | None = None
    ) -> Iterator[tuple[float, list[Images]]]:
        """(weight, products not divided by it) for every chunk of this process's data."""
        size = min(self.chunk, chunk or self.chunk)
        if self._held is not None and all(_batches.num_samples(b) <= size for b, _ in self._held):
            yield from self._by_kept_graph(self._held, requests)
            return
        held: list[tuple[Any, BatchLocation]] | None = [] if self._keeps else None
        num_samples = 0
        for where, batch in self.surface.chunks(size):
            num_samples += _batches.num_samples(batch)
            if held is not None:
                held.append((batch, where))
                held = held if self._fit(num_samples, len(held)) else None
            if held is None:
                self._graphs = {}
            graph = self._graph(batch, where, requests)
            yield graph.weight, self._multiplied(graph, requests)
            if held is not None:
                self._graphs[len(held) - 1] = graph
            del graph  # before the next one is made
        self._held = held

    def _by_kept_graph(
        self, held: Sequence[tuple[Any, BatchLocation]], requests: Sequence[Request]
    ) -> Iterator[tuple[float, list[Images]]]:
        """The same with graphs that serve until their weights are no longer the model's own.

        The user's callback, called between chunks, may measure the model. If that holds the weights
        in another type for a while, torch cuts them off from older graphs.
        """
        if any(not graph.serves(requests) for graph in self._graphs.values()):
            self._graphs = {}  # free all of them before the next ones are made
        done = 0
        for number, (batch, where) in enumerate(held):
            graph = self._graphs.pop(number, None)
            if graph is None or not graph.is_whole:
                graph = None  # free it before the next one is made
                graph = self._graph(batch, where, requests)
            self._graphs[number] = graph
            yield graph.weight, self._multiplied(graph, requests)
            done += graph.num_samples
            del graph
            self.surface.report_progress(done)

    def _fit(self, num_samples: int, num_chunks: int) -> bool:
        """Whether the graphs of so many samples can be kept."""
        weights = sum(p.nbytes for p in self.surface.parameters.values())
        limited = self.memory.limit is not None
        return graphs_fit(
            num_samples, num_chunks, most=self.kept, weights=weights, is_limited=limited
        )

    def _graph(self, batch: Any, where: BatchLocation, requests: Sequence[Request]) -> _Graph:
        length = _batches.num_samples(batch)
        operators = tuple(dict.fromkeys(request.operator for request in requests))
        names = tuple({name: None for request in requests for name in request.space.names})
        together = 1
        if any(len(request.vectors) > 1 for request in requests):
            # memory is planned for `chunk` samples
            together = max(1, min(self.together, self.chunk // length))
        with full_precision(), self._kernels():
            weight, products = make_products(
                self.surface, batch, where, operators, names, self.method, together, self._known
            )
        kept = names if self._keeps else ()
        ends = {name: _end_of_graph(self.surface.parameters[name]) for name in kept}
        return _Graph(weight, length, self.surface.parameters, ends, products)

    def _kernels(self) -> contextlib.AbstractContextManager[None]:
        """Those of attention that the method needs; a gradient needs no special ones."""
        plain = self.method == "difference"
        return contextlib.nullcontext() if plain else twice_differentiable()

    def _multiplied(self, graph: _Graph, requests: Sequence[Request]) -> list[Images]:
        count = sum(len(request.vectors) for request in requests) * graph.num_samples
        self.surface.cost += Cost(products=count)
        with full_precision(), self._kernels():
            return [graph.products[r.operator](r.space, r.vectors) for r in requests]


class ImageSums:
    """Products added up over chunks."""

    def __init__(self, like: Tensor) -> None:
        self.rows = torch.zeros_like(like, dtype=torch.float64)
        self.squares = torch.zeros(
            len(like), dtype=torch.float64, device=like.device
        )  # of rounding

    @functools.cached_property
    def gaps(self) -> Tensor:
        """Of differences; a process without data has none."""
        return torch.zeros_like(self.rows)

    def add(self, images: Images) -> None:
        """Add those of a chunk."""
        self.rows += images.rows
        if images.gaps is not None and images.rounding is not None:
            self.gaps.add_(images.gaps)
            self.squares += images.rounding.square()


def errors_of(images: Images) -> Tensor:
    """How far each product by differences may be off, as the length of a vector."""
    assert images.gaps is not None
    assert images.rounding is not None
    return squared_norms(images.gaps).sqrt() + images.rounding


@dataclasses.dataclass(frozen=True)
class _Graph:
    """What multiplies vectors on one chunk of data."""

    weight: float
    num_samples: int
    parameters: Mapping[str, Tensor]
    ends: Mapping[str, Any]  # where the graph ends, for each parameter; of graphs that are kept
    products: Mapping[Operator, RowProducts]

    @property
    def is_whole(self) -> bool:
        """Whether the parameters are still those at which the graph ends."""
        return all(_end_of_graph(self.parameters[name]) is end for name, end in self.ends.items())

    def serves(self, requests: Sequence[Request]) -> bool:
        """Whether all of these vectors can be multiplied."""
        return all(
            request.operator in self.products and self.ends.keys() >= set(request.space.names)
            for request in requests
        )


def _end_of_graph(parameter: Tensor) -> Any:
    """The node at which torch collects the gradient of a parameter."""
    with torch.enable_grad():
        node = parameter.view_as(parameter).grad_fn
    assert node is not None
    return node.next_functions[0][0]
