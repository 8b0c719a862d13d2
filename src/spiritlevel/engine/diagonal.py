"""The diagonal of the GGN: squares of the sweep's per-sample gradients, added up by entry.

    diag GGN = mean_n Σ_k σ_k G_{n,k}²

Where the sweep contracts a gradient to one number, here every entry of it is kept. So the gradients
of all samples of a chunk are formed, and chunks are smaller than those of the trace.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..math.contractions import gradient_trace
from ..math.signs import random_signs
from ..model.layer_hooks import LayerUse
from ..model.layers import ContractionRequest
from .data_pass import Needs
from .routes import Route
from .second_look import doubts_about
from .sweep.backward import Probes, Sweep
from .sweep.listeners import ChunkRows
from .sweep.sums import ChunkValues, SweepSums
from .weight_space.parameter_space import ParameterSpace
from .weight_space.products import Products, Request
from .workspace import Workspace

Entries = dict[str, Tensor]  # by parameter, in its shape, float64
_STREAM = 1 << 21  # of random numbers, different from those of all other probes
COPIES = 4  # of a sample's gradient: as it is, in float64, its square, and times its factor


@dataclasses.dataclass(frozen=True)
class Entry:
    """The diagonal over one parameter: a mean of draws, or exact where there was one alone."""

    values: Tensor
    variance: Tensor  # of the mean over the draws; zeros if nothing was drawn


class _Rows(ChunkRows):
    """The rows of a chunk, which add the square of every gradient to the diagonal as well."""

    def __init__(self, sums: SweepSums, num_samples: int, totals: list[Entries]) -> None:
        super().__init__(sums, num_samples)
        self.totals, self.draw = totals, 0

    def add_gradient(self, name: str, G: Tensor, factor: Tensor) -> None:
        """Add factor × G², and note the trace for the second look."""
        self.add_trace(name, gradient_trace(G), factor)
        squares = G.reshape(factor.numel(), -1).double().square()
        total = self.totals[self.draw][name]
        total += torch.mv(squares.T, factor.flatten().double()).reshape(total.shape)

    def collect(self, device: torch.device) -> ChunkValues:
        """The values of this draw; the squares that follow belong to the next one."""
        self.draw += 1
        return super().collect(device)


class DiagonalSweep(Sweep):
    """A sweep that keeps every entry of the diagonal, not only its sum."""

    def __init__(self, workspace: Workspace, probes: Probes | None, *, elements: bool) -> None:
        surface = workspace.surface
        super().__init__(
            surface, workspace.plan, kappa=False, rho=False, probes=probes, elements=elements
        )
        zeros = {"dtype": torch.float64, "device": surface.device}
        self.totals: list[Entries] = [
            {name: torch.zeros(p.shape, **zeros) for name, p in surface.parameters.items()}  # type: ignore[call-overload]
            for _ in (range(1 + 2 * elements) if probes is None else probes.streams)
        ]

    def new_rows(self, num_samples: int) -> ChunkRows:
        """Rows of one chunk, whose squares are added to the diagonal of the current draw."""
        return _Rows(self.sums, num_samples, self.totals)

    def request_for(
        self, named: dict[str, str], use: LayerUse, routes: Mapping[str, Route]
    ) -> ContractionRequest:
        """A request that contracts nothing, so that every gradient is formed."""
        return dataclasses.replace(self.request, contract=False)

    def _hold(self, *_: Any) -> int:
        return 1

    def _contract_formed(self, name: str, G: Tensor, rows: ChunkRows, factor: Tensor) -> None:
        rows.add_gradient(name, G, factor)


@dataclasses.dataclass(frozen=True)
class GgnDiagonal:
    """The diagonal, and how far it is the Hessian's and to be believed."""

    entries: dict[str, Entry]
    bends: dict[str, str]  # parameters of which it is not the Hessian's, and what bends the outputs
    doubts: dict[str, str]  # what a second look does not confirm
    num_probes: int | None  # in place of all columns


def ggn_diagonal(workspace: Workspace, least_probes: int, *, whole: bool = False) -> GgnDiagonal:
    """One pass over the data of all processes.

    `least_probes` is the number of output probes where these replace the columns. As a `whole`,
    the diagonal is the Hessian's where elementwise functions complete it.
    """
    surface = workspace.surface
    workspace.want(Needs(sweep=True))
    probes = workspace.output_probes(least_probes) if workspace.by_probes else None
    sweep = DiagonalSweep(workspace, probes, elements=whole and workspace.takes_elements)
    largest = max(p.numel() for p in surface.parameters.values())
    footprint = workspace.plan.footprint if probes is None else workspace.plan.probe_footprint
    chunk = footprint.chunk(workspace.memory, sweep=True)
    chunk = max(1, min(chunk, workspace.memory // (8 * COPIES * largest)))
    total = torch.zeros((), dtype=torch.float64, device=surface.device)
    with surface.processes.together():
        for where, batch in surface.chunks(chunk):
            outputs, targets, _ = sweep.run(batch, where, None)
            total += surface.loss.weights(outputs, targets).double().sum()
    bends: dict[str, str] = {}
    complete = all(surface.processes.gather(not sweep.uncertified))
    for others in surface.processes.gather({} if complete else sweep.bends):
        bends = others | bends
    surface.processes.sum_(total, *[t for draw in sweep.totals for t in draw.values()])
    entries = {
        name: mean_of([draw[name] / total for draw in sweep.totals], drawn=probes is not None)
        for name in surface.parameters
    }
    if sweep.elements is not None and complete:  # the last two are what elements add
        ggn, checked, rest = sweep.totals
        entries = {
            name: Entry((ggn[name] + checked[name] + rest[name]) / total, entry.variance)
            for name, entry in entries.items()
        }
    doubts = doubts_about(sweep, workspace.seed, chunk)
    return GgnDiagonal(entries, bends, doubts, None if probes is None else len(sweep.totals))


def residual_diagonal(
    products: Products, names: list[str], *, seed: int, num_probes: int
) -> dict[str, Entry]:
    """The diagonal of H − GGN over some parameters: the mean of ξ ∘ (H − GGN)ξ over random signs.

    The parameters are probed together, so entries of one block also vary with its other blocks.
    """
    space = ParameterSpace(products.surface, names)
    per_pass = max(1, (1 << 28) // (16 * space.size))
    mean = torch.zeros(space.size, dtype=torch.float64, device=space.device)
    spread, count = torch.zeros_like(mean), 0
    while count < num_probes:
        numbers = torch.arange(count, min(num_probes, count + per_pass), device=space.device)
        signs = random_signs(seed, _STREAM, numbers, space.size, space.dtype)
        (images,) = products.multiply([Request("residual", space, signs)])
        for value in signs.double() * images.double():  # Welford: nothing is kept
            count += 1
            gap = value - mean
            mean += gap / count
            spread += gap * (value - mean)
    variance = spread / (count - 1) / count
    parts, of_parts = (_by_name(space, vector) for vector in (mean, variance))
    return {name: Entry(parts[name], of_parts[name]) for name in names}


def _by_name(space: ParameterSpace, vector: Tensor) -> dict[str, Tensor]:
    """Divided by parameter in float64, which `split` would round to the parameters' type."""
    return {
        name: vector[part].reshape(shape)
        for (name, part), shape in zip(space.slices.items(), space.shapes, strict=True)
    }


def mean_of(draws: list[Tensor], *, drawn: bool) -> Entry:
    """The mean of some draws and its variance, or the only value if nothing was drawn."""
    values = torch.stack(draws)
    if not drawn:
        return Entry(values[0], torch.zeros_like(values[0]))
    return Entry(values.mean(dim=0), values.var(dim=0) / len(draws))
