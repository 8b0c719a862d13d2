"""Slope and GGN curvature along many directions of all layers, from one sweep of the columns.

With s_k the factor columns of the loss's Hessian at the outputs, c_k(δ) = ⟨s_k, J δ⟩ is the
derivative of ⟨s_k, z⟩ along δ. One backward for each column gives c_k of every direction, and

    δᵀ GGN δ' = mean_n Σ_k σ_k c_k(δ) c_k(δ').

Where a layer is certified this is the Hessian's own. The slope takes one backward more.
With many outputs a few probes Σ_k ±s_k replace the columns, with signs of its own for every sample:
the mean is the same, and the spread within the samples is the error.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import torch
from torch import Tensor

from ...math.curvature import SignedColumn, scaled_to_one
from ...math.signs import random_signs
from ...model.linearity import bends
from ..recorded_runs import RecordedRun, edges_of
from ..workspace import Workspace
from .chunks import add_chunks, weight_of
from .families import AbstractFamily
from .tally import Directional, Tally

COPIES = 2  # of what a family computes at the outputs
_STREAM = 1 << 22  # of random numbers, different from those of all other probes


def run_column_pass(
    workspace: Workspace,
    family: AbstractFamily,
    *,
    pairs: bool,
    covariance: bool | None = None,
    num_probes: int = 0,
) -> Directional:
    """One pass over the data of all processes; with `num_probes` these replace the columns.

    `pairs` and `covariance` are those of `Tally`.
    """
    surface = workspace.surface
    tally = Tally(
        family.size, surface.device, pairs=pairs, covariance=covariance, num_probes=num_probes
    )
    by_id = {id(surface.parameters[name]): name for name in family.names}
    bent: dict[str, str] = {}

    def add(run: RecordedRun, samples: Tensor) -> None:
        bent.update(bends(run.outputs, by_id))
        _Chunk(workspace, family, run, samples).add(tally)

    widest = max((family.count(name) for name in family.names), default=1)
    share = max(1, workspace.memory // (1 + COPIES * min(widest, 8)))
    footprint = workspace.plan.probe_footprint if num_probes else workspace.plan.footprint
    add_chunks(workspace, family.names, footprint.chunk(share, sweep=True), add)
    for others in surface.processes.gather(bent):
        bent = others | bent
    return dataclasses.replace(tally.reduce(surface.processes), bends=bent)


class _Chunk:
    """One chunk of data, whose samples have numbers on which their signs depend."""

    def __init__(
        self, workspace: Workspace, family: AbstractFamily, run: RecordedRun, samples: Tensor
    ) -> None:
        self.workspace, self.surface = workspace, workspace.surface
        self.run, self.samples, self.size = run, samples, family.size
        self.edges = edges_of(run.places)
        spans = family.spans
        self.slopes = [
            (spans[weight_of(use)], family.slopes(use, layout, weight_of(use)))
            for use, layout in run.places
        ]

    def add(self, tally: Tally) -> None:
        """Slope and curvature of every direction."""
        outputs, targets, loss = self.run.outputs, self.run.targets, self.surface.loss
        with torch.enable_grad():
            wide = outputs.detach().double().requires_grad_()
            total = loss.values(wide, targets).sum()
        (signal,) = torch.autograd.grad(total, wide)
        c, scale = self._along(signal.reshape(len(signal), -1))
        first = scale * c
        mean, spread = torch.zeros_like(first), torch.zeros_like(first)
        for i, columns in enumerate(self._draws(tally.num_probes)):
            second = torch.zeros_like(first)
            for column, sign in columns:
                c, scale = self._along(column)
                weighted = sign[:, None] * scale.square() * c
                second += weighted * c
                if tally.pairs:
                    tally.grams[tally.group_of(i)] += weighted.T @ c
            tally.seconds[tally.group_of(i)] += second.sum(dim=0)
            gap = second - mean  # Welford: no draw is kept
            mean += gap / (i + 1)
            spread += gap * (second - mean)
        if tally.num_probes:
            tally.probe_variance += spread.sum(dim=0) / (tally.num_probes * (tally.num_probes - 1))
        tally.add(first, mean, loss.weights(outputs.detach(), targets).double())

    def _draws(self, num_probes: int) -> Iterator[Iterator[SignedColumn]]:
        """All columns at once, or the columns of one probe after the other."""
        workspace, samples = self.workspace, self.samples
        outputs = self.run.outputs.detach().double()
        curvature = self.surface.loss.curvature(outputs, self.run.targets)
        if not num_probes:
            yield iter(curvature.columns())
        for i in range(num_probes):
            signs = random_signs(
                workspace.seed, _STREAM + i, samples, curvature.num_signs, torch.float64
            )
            yield iter(curvature.probe(signs))

    def _along(self, cotangent: Tensor) -> tuple[Tensor, Tensor]:
        """⟨cotangent, outputs⟩ along all directions, (N, D) in float64, up to a scale: (N, 1)."""
        outputs = self.run.outputs
        unit, scale = scaled_to_one(cotangent)
        found = torch.zeros(len(outputs), self.size, dtype=torch.float64, device=outputs.device)
        if self.edges:
            shaped = unit.reshape(outputs.shape).to(outputs.dtype)
            gradients = self.surface.pull(outputs, shaped, self.edges)
            for gradient, (span, along) in zip(gradients, self.slopes, strict=True):
                if gradient is not None:
                    found[:, span] += along(gradient)
        return found, scale
