"""Slope and Hessian curvature along given changes of the weights, from second backwards.

A change Δ of one weight moves the outputs of its layer by v_t = Δ a_t, and δᵀHδ of a sample is
vᵀ (∂²ℓ/∂e²) v, where e is what is added to these outputs. One second backward along the changes of
all layers gives ⟨v_l, H v⟩ of each, cross terms between layers included. With a random sign for
every layer, another one for each sample, these have mean 0, and their spread is the error.
For a single layer, or for the changes of all layers taken together, nothing is random.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...errors import NotApplicable
from ...math.signs import random_signs
from ...model.arithmetic import full_precision
from ...model.layers import Layout
from ...model.model_state import twice_differentiable
from ...records import Cost
from ..recorded_runs import Places, RecordedRun, RecordedRuns, edges_of, second_derivatives
from ..sweep.listeners import at_least_float
from ..sweep.probed_rows import SampleNumbers
from ..workspace import Workspace
from .column_pass import spans
from .families import GivenChanges
from .tally import Directional, Tally

_STREAM = 3 << 20  # of random numbers, different from those of all other probes


def run_product_pass(
    workspace: Workspace, family: GivenChanges, *, num_probes: int, joint: bool = False
) -> Directional:
    """One pass over the data of all processes; every parameter has the same number of changes.

    With `joint` the i-th changes of all parameters are one direction, so that there are as many
    directions as changes of a parameter. Raises NotApplicable where torch has no second derivatives
    of the model.
    """
    surface = workspace.surface
    if workspace.products.method != "reverse":
        raise NotApplicable("autograd has no second derivatives of the model, or wrong ones")
    size = sum(family.count(name) for name in family.names)
    count = family.count(family.names[0])
    probes = 1 if joint or len(family.names) == 1 else num_probes
    tally = Tally(count if joint else size, surface.device, pairs=not joint)
    runs = RecordedRuns(workspace, family.names, together=joint)
    numbers = SampleNumbers(workspace)
    with surface.processes.together(), full_precision(), twice_differentiable():
        for where, batch in surface.chunks(workspace.products.chunk):
            with runs.run(batch, where) as run, surface.numbers.fast():
                samples = numbers.of(where, len(run.outputs))
                signs = [
                    random_signs(
                        workspace.seed, _STREAM + i, samples, len(family.names), torch.float64
                    )
                    for i in range(probes)
                ]
                if joint or len(family.names) == 1:
                    signs = [torch.ones_like(signs[0])]
                _Chunk(workspace, run, family, joint).add(signs, tally)
    return tally.reduce(surface.processes)


class _Chunk:
    """One chunk of data, with the graph of its gradient."""

    def __init__(
        self, workspace: Workspace, run: RecordedRun, family: GivenChanges, joint: bool
    ) -> None:
        self.surface, self.run, self.family, self.joint = workspace.surface, run, family, joint
        self.places: Places = run.places
        self.columns = {name: i for i, name in enumerate(family.names)}
        self.spans = spans(family)
        with torch.enable_grad():
            wide = run.outputs.double()
            total = self.surface.loss.values(wide, run.targets).sum()
            self.surface.cost += Cost(backwards=len(wide))
            self.gradients = torch.autograd.grad(
                total, edges_of(self.places), create_graph=True, allow_unused=True
            )

    def add(self, signs: list[Tensor], tally: Tally) -> None:
        """Add all changes, each with every set of signs of shape (N, names)."""
        count = len(self.run.outputs)
        weights = self.surface.loss.weights(self.run.outputs.detach(), self.run.targets).double()
        first = weights.new_zeros(count, tally.size)
        draws = [torch.zeros_like(first) for _ in signs]
        for i in range(self.family.count(self.family.names[0])):
            moved = self._moved(i)
            for (_, layout), gradient, (name, v) in zip(
                self.places, self.gradients, moved, strict=True
            ):
                if gradient is not None and v is not None:
                    first[:, self._column(name, i)] += _inner(layout, gradient, v)
            for draw, of_draw in zip(draws, signs, strict=True):
                self._second(moved, of_draw, i, draw)
        second = torch.stack(draws).mean(dim=0)
        tally.add(first, second, weights)
        if len(draws) > 1:
            spread = torch.stack(draws).var(dim=0) / len(draws)
            tally.probe_variance += spread.sum(dim=0)

    def _column(self, name: str, i: int) -> int:
        return i if self.joint else self.spans[name].start + i

    def _moved(self, i: int) -> list[tuple[str, Tensor | None]]:
        """The i-th change of every weight at the output of each of its uses."""
        found: list[tuple[str, Tensor | None]] = []
        with torch.enable_grad():
            for use, _ in self.places:
                name = use.names.get("weight", "")
                v = self.family.at_output(use, name, i) if name in self.columns else None
                found.append((name, v))
        return found

    def _second(
        self, moved: list[tuple[str, Tensor | None]], signs: Tensor, i: int, draw: Tensor
    ) -> None:
        """Add ⟨v, ∂²ℓ/∂e² v⟩ of every sample to the columns of `draw`."""
        along: list[list[Tensor]] = []  # at each place: one direction or none
        with torch.enable_grad():
            for (use, layout), (name, v) in zip(self.places, moved, strict=True):
                if v is None:
                    along.append([])
                    continue
                rows = layout.sample_of_rows(use.output.shape).to(signs.device)
                own = signs[rows, self.columns[name]].to(v.dtype)
                view = [1] * v.dim()
                view[layout.dim] = len(own)
                along.append([v * own.reshape(view)])
        images = second_derivatives(self.places, self.gradients, along)
        if images is None:
            return
        self.surface.cost += Cost(products=len(draw))
        for (_, layout), image, directions, (name, _) in zip(
            self.places, images, along, moved, strict=True
        ):
            for signed in directions if image is not None else ():
                assert image is not None
                draw[:, self._column(name, i)] += _inner(layout, image, signed)


def _inner(layout: Layout, left: Tensor, right: Tensor) -> Tensor:
    """⟨left, right⟩ of every sample, in float64."""
    terms = layout.split(at_least_float(left.detach()) * at_least_float(right.detach()))
    return terms.reshape(len(terms), -1).sum(dim=1, dtype=torch.float64)
