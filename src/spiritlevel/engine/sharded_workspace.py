"""The workspace of a model that FSDP2 has divided among processes, and that stays so."""

from __future__ import annotations

import contextlib
import functools

from .weight_space.chunk_products import ProductMethod
from .weight_space.long_rows import divided_among
from .weight_space.sharded_products import ShardedProducts
from .workspace import Workspace


class ShardedWorkspace(Workspace):
    """Products and nothing else: a pass over the data would need whole weights."""

    def start(self) -> None:
        """There is nothing to plan: batches are those of the loader, as in training."""

    def divided(self) -> contextlib.AbstractContextManager[None]:
        """A context in which each process has a part of every vector."""
        return divided_among(self.surface.processes)

    @property
    def num_outputs(self) -> int:
        """Not known without a plan, and not needed for products."""
        return 0

    @property
    def product_method(self) -> ProductMethod:  # type: ignore[override]
        """The only one that needs no whole weights."""
        return "difference"

    @functools.cached_property
    def products(self) -> ShardedProducts:  # type: ignore[override]
        """Products with the Hessian over this surface."""
        assert self.surface.shards is not None
        return ShardedProducts(self.surface, self.surface.shards, self.vector_memory)
