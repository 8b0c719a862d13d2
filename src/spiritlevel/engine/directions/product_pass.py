"""Slope and Hessian curvature along given changes of the weights, from second backwards.

A change Δ of one weight moves the outputs of its layer by v_t = Δ a_t, and δᵀHδ of a sample is
vᵀ (∂²ℓ/∂e²) v, where e is what is added to these outputs. One second backward along the changes of
all layers gives ⟨v_l, H v⟩ of each, cross terms between layers included. With a random sign for
every layer, another one for each sample, these have mean 0, and their spread is the error.
For a single layer nothing is random.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from ...ground.errors import NotApplicable
from ...math.signs import random_signs
from ...model.layers import Layout
from ...model.model_state import twice_differentiable
from ...model.surface import Surface
from ...records.measurements import Cost
from ..recorded_runs import RecordedRun, edges_of, second_derivatives
from ..sweep.listeners import at_least_float
from ..workspace import Workspace
from .chunks import add_chunks, weight_of
from .families import GivenChanges
from .tally import Directional, Tally

_STREAM = 3 << 20  # of random numbers, different from those of all other probes


def run_product_pass(workspace: Workspace, family: GivenChanges, *, num_probes: int) -> Directional:
    """One pass over the data of all processes; every parameter has the same number of changes.

    Raises NotApplicable where torch has no second derivatives of the model.
    """
    surface, names = workspace.surface, family.names
    if workspace.products.method != "reverse":
        raise NotApplicable("autograd has no second derivatives of the model, or wrong ones")
    tally = Tally(family.size, surface.device, pairs=True)

    def add(run: RecordedRun, samples: Tensor) -> None:
        signs = [
            random_signs(workspace.seed, _STREAM + i, samples, len(names), torch.float64)
            for i in range(num_probes)
        ]
        if len(names) == 1:
            signs = [samples.new_ones(len(samples), 1, dtype=torch.float64)]
        _GradientChunk(surface, family, run).add(signs, tally)

    with twice_differentiable():
        add_chunks(workspace, names, workspace.products.chunk, add)
    return tally.reduce(surface.processes)


class _GradientChunk:
    """One chunk of data, with the graph of its gradient."""

    def __init__(self, surface: Surface, family: GivenChanges, run: RecordedRun) -> None:
        self.surface, self.family, self.run = surface, family, run
        self.edges = edges_of(run.places)
        self.number = {name: i for i, name in enumerate(family.names)}
        spans = family.spans
        self.starts = [spans[weight_of(use)].start for use, _ in run.places]
        with torch.enable_grad():
            wide = run.outputs.double()
            total = surface.loss.values(wide, run.targets).sum()
            surface.cost += Cost(backwards=len(wide))
            self.gradients = (
                torch.autograd.grad(total, self.edges, create_graph=True, allow_unused=True)
                if self.edges  # a branch that was not taken leaves none
                else ()
            )

    def add(self, signs: list[Tensor], tally: Tally) -> None:
        """Add all changes, each with every set of signs of shape (N, names)."""
        outputs = self.run.outputs.detach()
        weights = self.surface.loss.weights(outputs, self.run.targets).double()
        first = weights.new_zeros(len(outputs), tally.size)
        draws = weights.new_zeros(len(signs), *first.shape)
        for i in range(self.family.count(self.family.names[0])):
            with torch.enable_grad():
                moved = [
                    self.family.at_output(use, weight_of(use), i) for use, _ in self.run.places
                ]
            self._collect(self.gradients, moved, i, first)
            for draw, of_draw in zip(draws, signs, strict=True):
                self._second(moved, of_draw, i, draw)
        tally.add(first, draws.mean(dim=0), weights)
        if len(signs) > 1:
            tally.probe_variance += (draws.var(dim=0) / len(signs)).sum(dim=0)

    def _collect(
        self, images: Iterable[Tensor | None], moved: list[Tensor], i: int, into: Tensor
    ) -> None:
        """Add ⟨image, v⟩ of every use to the column of its weight's i-th change."""
        places = zip(self.run.places, self.starts, images, moved, strict=True)
        for (_, layout), start, image, v in places:
            if image is not None:
                into[:, start + i] += _inner(layout, image, v)

    def _second(self, moved: list[Tensor], signs: Tensor, i: int, draw: Tensor) -> None:
        """Add ⟨v, ∂²ℓ/∂e² v⟩ of every sample to the columns of `draw`."""
        along: list[list[Tensor]] = []  # one direction at each place
        with torch.enable_grad():
            for (use, layout), v in zip(self.run.places, moved, strict=True):
                of_weight = signs[:, self.number[weight_of(use)]]
                own = layout.repeated(of_weight, use.output.shape).to(v.dtype)
                view = [1] * v.dim()
                view[layout.dim] = len(own)
                along.append([v * own.reshape(view)])
        images = second_derivatives(self.run.places, self.gradients, along)
        if images is None:
            return
        self.surface.cost += Cost(products=len(draw))
        self._collect(images, [signed for [signed] in along], i, draw)


def _inner(layout: Layout, left: Tensor, right: Tensor) -> Tensor:
    """⟨left, right⟩ of every sample, in float64."""
    terms = layout.split(at_least_float(left.detach()) * at_least_float(right.detach()))
    return terms.reshape(len(terms), -1).sum(dim=1, dtype=torch.float64)
