"""Products with the Hessian, its residual H − GGN, and the GGN, over all data."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

import torch
from torch import Tensor

from ...errors import SpiritlevelError, is_out_of_memory
from ...model import batches as _batches
from ...model.arithmetic import full_precision
from ...model.batches import BatchLocation
from ...model.model_state import twice_differentiable
from ...model.surface import Surface
from ...records import Cost
from . import trust
from .chunk_products import Operator, ProductMethod, RowProducts, make_products
from .groups import groups
from .parameter_space import ParameterSpace
from .product_methods import PROBE_SAMPLES, choose_method
from .vector_memory import VectorMemory

# Vectors per backward where it would otherwise wait for Python: on a GPU, unless the model is very
# large, and in small models.
TOGETHER = 8
SMALL, TOGETHER_IF_SMALL = 20_000, 32  # parameters, and vectors up to there
KEPT_GRADIENTS = 1 << 30  # bytes of gradients whose graphs are kept, where nobody set a limit


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
        memory: VectorMemory | None = None,
        kept: int | None = None,
    ) -> None:
        """`method=None` takes the first of the three that the model supports.

        `together` is the number of vectors per backward; None: several on a GPU and in a small
        model, otherwise one. `memory` is what those who ask for products may hold of vectors.
        `kept` is the number of samples whose graphs may be held at a time; None: those of a chunk.
        """
        self.surface = surface
        self.chunk = chunk
        self.kept = chunk if kept is None else kept
        self.memory = memory or VectorMemory()
        if method is not None and method not in get_args(ProductMethod):
            raise SpiritlevelError(
                "The 'method' argument of Products must be one of "
                f"{', '.join(get_args(ProductMethod))}. Got {method!r}. Leave it out to take the "
                "first that the model supports."
            )
        self.method = method or choose_method(surface, trust.samples_at_once(surface, chunk))
        self.together = together or self._choose_together()
        self._keeps = False
        self._held: list[tuple[Any, BatchLocation]] | None = None  # all chunks, if they are few
        self._graphs: list[_Graph] = []  # of these chunks

    @contextlib.contextmanager
    def keeping_graph(self) -> Iterator[None]:
        """Build the gradient's graphs once for all products of the block.

        That needs data that has no more than `kept` samples, in one batch or several.
        """
        self._keeps = self.method == "reverse"
        try:
            yield
        finally:
            self._keeps, self._held, self._graphs = False, None, []

    def _choose_together(self) -> int:
        """1 if a backward is worth more than Python, or an operation cannot be batched."""
        space = ParameterSpace(self.surface)
        on_gpu = self.surface.device.type == "cuda"
        waits = space.size <= SMALL or (on_gpu and len(groups(self.surface)) == 1)
        if self.method != "reverse" or not waits:
            return 1
        key = ("products together", self.surface.dtype, self.surface.first_run())
        if not self.surface.known.recall(key, lambda: self._can_be_batched(space)):
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
        if self._held is not None and all(_batches.num_samples(b) <= size for b, _ in self._held):
            if not self._graphs or not self._graphs[0].serves(requests):
                self._graphs = []  # free them before the next ones are made
                self._graphs = [self._graph(*each, requests) for each in self._held]
            for graph in self._graphs:
                yield graph.weight, self._multiplied(graph, requests)
            return
        # Not their graphs: the user's callback, called between chunks, may measure the model. If
        # that holds the weights in another type for a while, torch cuts them off from older graphs.
        held: list[tuple[Any, BatchLocation]] | None = [] if self._keeps else None
        num_samples = 0
        for where, batch in self.surface.chunks(size):
            num_samples += _batches.num_samples(batch)
            if held is not None:
                held.append((batch, where))
                held = held if self._fit(num_samples, len(held)) else None
            graph = self._graph(batch, where, requests)
            yield graph.weight, self._multiplied(graph, requests)
            del graph  # before the next one is made
        self._held = held

    def _fit(self, num_samples: int, num_chunks: int) -> bool:
        """Whether the graphs of so many samples can be kept.

        Each chunk also has a gradient, as large as the vectors whose memory a user may limit.
        """
        weights = sum(p.numel() * p.element_size() for p in self.surface.parameters.values())
        most = KEPT_GRADIENTS // max(weights, 1) if self.memory.limit is None else 1
        return num_samples <= self.kept and num_chunks <= max(1, most)

    def _graph(self, batch: Any, where: BatchLocation, requests: Sequence[Request]) -> _Graph:
        length = _batches.num_samples(batch)
        operators = tuple(dict.fromkeys(request.operator for request in requests))
        names = tuple({name: None for request in requests for name in request.space.names})
        # memory is planned for `chunk` samples
        together = max(1, min(self.together, self.chunk // length))
        with full_precision(), twice_differentiable():
            weight, products = make_products(
                self.surface, batch, where, operators, names, self.method, together
            )
        return _Graph(weight, length, frozenset(names), products)

    def _multiplied(self, graph: _Graph, requests: Sequence[Request]) -> list[Tensor]:
        count = sum(len(request.vectors) for request in requests) * graph.num_samples
        self.surface.cost += Cost(products=count)
        with full_precision(), twice_differentiable():
            return [graph.products[r.operator](r.space, r.vectors) for r in requests]


@dataclasses.dataclass(frozen=True)
class _Graph:
    """What multiplies vectors on one chunk of data."""

    weight: float
    num_samples: int
    names: frozenset[str]
    products: Mapping[Operator, RowProducts]

    def serves(self, requests: Sequence[Request]) -> bool:
        """Whether all of these vectors can be multiplied."""
        return all(
            request.operator in self.products and self.names.issuperset(request.space.names)
            for request in requests
        )
