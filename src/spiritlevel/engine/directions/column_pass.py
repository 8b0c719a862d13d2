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
from collections.abc import Iterable

import torch
from torch import Tensor

from ...math.curvature import SignedColumn, scaled_to_one
from ...math.signs import random_signs
from ...model.arithmetic import full_precision
from ...model.linearity import bends
from ..recorded_runs import Places, RecordedRun, RecordedRuns, edges_of
from ..sweep.probed_rows import SampleNumbers
from ..workspace import Workspace
from .families import AbstractFamily, Slopes
from .tally import Directional, Tally

COPIES = 2  # of what a family computes at the outputs
_STREAM = 1 << 22  # of random numbers, different from those of all other probes


@dataclasses.dataclass(frozen=True)
class ColumnPass:
    """Slopes and curvatures along all directions, and where the GGN is not the Hessian."""

    found: Directional
    bends: dict[str, str]  # parameters in which the outputs bend, and by what


def run_column_pass(
    workspace: Workspace,
    family: AbstractFamily,
    *,
    pairs: bool,
    covariance: bool | None = None,
    num_probes: int = 0,
) -> ColumnPass:
    """One pass over the data of all processes; directions are in the order of `family.names`.

    `pairs` and `covariance` are those of `Tally`; with `num_probes` these replace the columns.
    """
    surface = workspace.surface
    places = spans(family)
    size = sum(family.count(name) for name in family.names)
    tally = Tally(size, surface.device, pairs=pairs, covariance=covariance, num_probes=num_probes)
    numbers = SampleNumbers(workspace)
    runs = RecordedRuns(workspace, family.names)
    by_id = {id(surface.parameters[name]): name for name in family.names}
    bent: dict[str, str] = {}
    widest = max((family.count(name) for name in family.names), default=1)
    share = max(1, workspace.memory // (1 + COPIES * min(widest, 8)))
    footprint = workspace.plan.probe_footprint if num_probes else workspace.plan.footprint
    chunk = footprint.chunk(share, sweep=True)
    with surface.processes.together(), full_precision():
        for where, batch in surface.chunks(chunk):
            with runs.run(batch, where) as run, surface.numbers.fast():
                bent |= bends(run.outputs, by_id)
                _add(workspace, run, family, places, tally, numbers.of(where, len(run.outputs)))
    for others in surface.processes.gather(bent):
        bent = others | bent
    return ColumnPass(tally.reduce(surface.processes), bent)


def spans(family: AbstractFamily) -> dict[str, slice]:
    """Where the directions of each parameter are among all."""
    found, start = {}, 0
    for name in family.names:
        found[name] = slice(start, start + family.count(name))
        start += family.count(name)
    return found


def _add(
    workspace: Workspace,
    run: RecordedRun,
    family: AbstractFamily,
    places: dict[str, slice],
    tally: Tally,
    samples: Tensor,
) -> None:
    """One chunk; `samples` are the numbers of its samples, on which their signs depend."""
    surface, outputs = workspace.surface, run.outputs
    slopes = [
        [(places[name], family.slopes(use, layout, name))]
        if (name := use.names.get("weight")) in places
        else []
        for use, layout in run.places
    ]
    weights = surface.loss.weights(outputs.detach(), run.targets).double()
    with torch.enable_grad():
        wide = outputs.detach().double().requires_grad_()
        total = surface.loss.values(wide, run.targets).sum()
    (signal,) = torch.autograd.grad(total, wide)
    unit, scale = scaled_to_one(signal.reshape(len(signal), -1))
    shaped = unit.reshape(outputs.shape)
    first = scale * _along(workspace, outputs, shaped, run.places, slopes, tally.size)
    curvature = surface.loss.curvature(outputs.detach().double(), run.targets)
    draws: Iterable[Iterable[SignedColumn]] = [curvature.columns()]
    if tally.num_probes:
        draws = (
            curvature.probe(
                random_signs(
                    workspace.seed, _STREAM + i, samples, curvature.num_signs, torch.float64
                )
            )
            for i in range(tally.num_probes)
        )
    mean, spread = torch.zeros_like(first), torch.zeros_like(first)
    for i, columns in enumerate(draws):
        second = torch.zeros_like(first)
        for column, sign in columns:
            unit, scale = scaled_to_one(column)
            shaped = unit.reshape(outputs.shape)
            c = _along(workspace, outputs, shaped, run.places, slopes, tally.size)
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
    tally.add(first, mean, weights)


def _along(
    workspace: Workspace,
    outputs: Tensor,
    cotangent: Tensor,
    places: Places,
    slopes: list[list[tuple[slice, Slopes]]],
    size: int,
) -> Tensor:
    """The derivatives of ⟨cotangent, outputs⟩ along all directions, shape (N, D), float64."""
    found = torch.zeros(len(outputs), size, dtype=torch.float64, device=outputs.device)
    edges = edges_of(places)
    if not edges:
        return found
    gradients = workspace.surface.pull(outputs, cotangent.to(outputs.dtype), edges)
    for gradient, of_use in zip(gradients, slopes, strict=True):
        for span, along in of_use if gradient is not None else ():
            assert gradient is not None
            found[:, span] += along(gradient)
    return found
