"""The workspace of a model that FSDP2 has divided among processes, and that stays so."""

from __future__ import annotations

import functools
from typing import Any

from .settings import settings_of
from .weight_space.chunk_products import ProductMethod
from .weight_space.sharded_products import ShardedProducts
from .workspace import Workspace


class ShardedWorkspace(Workspace):
    """Products and nothing else: a pass over the data would need whole weights."""

    def start(self) -> None:
        """There is nothing to plan: batches are those of the loader, as in training."""

    def settings(self) -> dict[str, Any]:
        """The settings needed to reproduce the numbers."""
        return settings_of(
            self.surface,
            self.precision,
            num_samples=self.num_samples,
            seed=self.seed,
            products=self.product_method,
        )

    @property
    def product_method(self) -> ProductMethod:
        """The only one that needs no whole weights."""
        return "difference"

    @functools.cached_property
    def products(self) -> ShardedProducts:  # type: ignore[override]
        """Products with the Hessian over this surface."""
        assert self.surface.shards is not None
        return ShardedProducts(self.surface, self.surface.shards, self.vector_memory)
