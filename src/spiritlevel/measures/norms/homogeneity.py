"""Homogeneous networks: z(cθ) = c^k z(θ) for every c > 0, with one k for all inputs.

Networks of rectifiers and pooling without biases are, and k is then the number of weights on a path
from input to output. The derivative along θ is k·z, so it costs no derivative at all.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor

from ...engine.moments import Moments
from ...engine.workspace import Workspace
from ...ground.errors import NotApplicable
from ...model.arithmetic import full_precision
from ...model.batches import BatchLocation
from ...model.surface import Surface
from ...records.measurements import Cost
from .radial import squared_slopes

PROBE_SAMPLES = 3
TOLERANCE = 1e3  # in units of the precision; twice a weight is exact, so only sums in other orders


@dataclasses.dataclass(frozen=True)
class Homogeneous:
    """Σ over the data of ⟨∇_z ℓ, z⟩² in the row "labels", and the degree."""

    moments: Moments
    degree: int
    cost: Cost


def check_homogeneous(workspace: Workspace, name: str) -> int:
    """The degree, on the first samples; raises where there is none."""
    if "degree" not in workspace.cache:
        surface = workspace.surface
        batch = surface.first_samples(PROBE_SAMPLES)
        with torch.no_grad(), full_precision():
            outputs, _ = surface.outputs(batch, where=BatchLocation(0))
            workspace.cache["degree"] = _degree(outputs, _doubled(surface, batch))
    degree: int | None = workspace.cache["degree"]
    if degree is None:
        raise _refusal(workspace.surface, name)
    return degree


def homogeneous(workspace: Workspace, name: str) -> Homogeneous:
    """One pass over the data, which also sees to it that no sample contradicts the degree.

    The first samples do not tell: where all rectifiers are off, the outputs are the last biases.
    """
    degree, before, surface = check_homogeneous(workspace, name), workspace.cost, workspace.surface
    moments = Moments(["labels"], surface.device)
    against = torch.zeros((), dtype=torch.int64, device=surface.device)
    with torch.no_grad(), full_precision(), surface.processes.together():
        for where, batch in surface.chunks(workspace.perturbed.chunk):
            outputs, targets = surface.outputs(batch, where=where)
            against += not _follows(outputs, _doubled(surface, batch), degree)
            rows = squared_slopes(surface.loss, outputs, targets, outputs)
            moments.add(rows[None], surface.loss.weights(outputs, targets).double())
    surface.processes.sum_(against)
    if against:  # in all processes, whoever has the sample
        raise _refusal(surface, name)
    moments.reduce(surface.processes)
    return Homogeneous(moments, degree, workspace.cost - before)


def _doubled(surface: Surface, batch: Any) -> Tensor:
    """The outputs at twice the weights."""
    twice = {name: 2 * p.detach() for name, p in surface.parameters.items()}
    outputs = surface.function(batch)(twice)
    surface.cost += Cost(forwards=len(outputs))
    return outputs


def _degree(outputs: Tensor, doubled: Tensor) -> int | None:
    one, two = outputs.double(), doubled.double()
    squares = float(one.square().sum())
    ratio = float((one * two).sum()) / squares if squares else math.nan
    if not 0.0 < ratio < math.inf:
        return None
    degree = round(math.log2(ratio))
    return degree if degree >= 0 and _follows(outputs, doubled, degree) else None


def _follows(outputs: Tensor, doubled: Tensor, degree: int) -> bool:
    """Whether every sample has 2^degree times its outputs."""
    expected = 2.0**degree * outputs.double().reshape(len(outputs), -1)
    gap = (doubled.double().reshape(expected.shape) - expected).abs().amax(dim=1)
    tolerance = TOLERANCE * torch.finfo(outputs.dtype).eps
    return bool((gap <= tolerance * expected.abs().amax(dim=1)).all())  # NaN is not


def _refusal(surface: Surface, name: str) -> NotApplicable:
    biases = [n for n in surface.parameters if n.rpartition(".")[2] == "bias"]
    shown = ", ".join(biases[:3]) + (", …" if len(biases) > 3 else "")
    cause = f"It has biases ({shown})" if biases else "Look for normalization or smooth activations"
    return NotApplicable(
        f"The measure {name!r} needs a homogeneous network: twice the measured weights must give "
        f"2^k times the outputs for one whole number k. They do not. {cause}. "
        "norms.fisher_rao holds for any network."
    )
