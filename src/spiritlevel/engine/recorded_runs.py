"""Runs of the model in which every use of some parameters is known, with the places of samples."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from ..model import batches as _batches
from ..model.batches import BatchLocation
from ..model.layer_hooks import LayerUse, recording_uses
from ..model.layers import Layout
from .sample_places import Piece, SamplePlaces
from .uses import complete_uses

if TYPE_CHECKING:
    from .workspace import Workspace

Places = list[tuple[LayerUse, Layout]]


class RecordedRun(NamedTuple):
    """A run of the model on a chunk, with its graph."""

    outputs: Tensor
    targets: Tensor
    places: Places


class RecordedRuns:
    """Runs the model chunk by chunk, and finds the uses of some parameters."""

    def __init__(
        self, workspace: Workspace, names: Collection[str], *, together: bool = False
    ) -> None:
        """`names` are those of the parameters; `together` says that one change has all of them."""
        self.workspace, self.surface, self.names = workspace, workspace.surface, names
        self._places = SamplePlaces(workspace, names, together=together)
        # all layers: the runs of every kind of rows then do the same, and are tested once
        self._modules = {
            layer: self.surface.layers.module(layer) for layer in self.surface.layers.rules
        }

    @contextlib.contextmanager
    def run(
        self, batch: Any, where: BatchLocation, index: Tensor | None = None
    ) -> Iterator[RecordedRun]:
        """A forward; its graph lives as long as the block.

        `index` says which samples of the chunk the batch holds; None: all of them.
        """
        surface = self.surface
        count = _batches.num_samples(batch) if self.workspace.plan.repeats else 1
        recording = recording_uses(self._modules, live=True, num_samples=count)
        with torch.enable_grad(), recording as recorded, surface.numbers.fast():
            outputs, targets = surface.outputs(batch, where=where)
        try:
            with torch.enable_grad():
                complete_uses(surface, recorded, outputs)
            key: Piece = where, None if index is None else tuple(index.tolist())
            yield RecordedRun(outputs, targets, self._places.of(recorded.uses, outputs, batch, key))
        finally:
            recorded.close()


def edges_of(places: Places) -> list[GradientEdge]:
    """Where gradients are taken."""
    return [use.edge for use, _ in places if use.edge is not None]
