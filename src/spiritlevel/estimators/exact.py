"""One pass over the data that brings back everything exact: the sweep, the head, the softmax."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from .. import _batches
from .._core import Cost
from ..math.curvature import OutputCurvature, SoftmaxCurvature
from ..math.head import head_kappa, head_trace
from ..surface import Surface
from .heads import Head
from .moments import Moments
from .plan import Plan
from .sweep import Sums, Sweep

SAMPLED_CHUNKS, SAMPLES_A_CHUNK = 4, 16


@dataclasses.dataclass(frozen=True)
class Needs:
    """What a pass over the data should bring back."""

    sweep: bool = False
    kappa: bool = False
    rho: bool = False
    head: bool = False
    features: bool = False  # keep φ, outputs and targets of all samples for λ_max and Tr H²
    softmax: bool = False

    def __or__(self, other: Needs) -> Needs:
        return Needs(
            **{
                field.name: getattr(self, field.name) or getattr(other, field.name)
                for field in dataclasses.fields(self)
            }
        )

    def covers(self, other: Needs) -> bool:
        """Whether a pass for these needs also serves `other`."""
        return (self | other) == self


@dataclasses.dataclass
class Pass:
    """What a pass over the data brought back."""

    needs: Needs
    num_samples: int
    cost: Cost
    sweep: Sums  # trace, κ and ρ; empty unless the sweep was needed
    head: Moments  # rows "trace" and "kappa"
    softmax: Moments  # row "gini"
    features: list[tuple[Tensor, Tensor, Tensor]]  # φ, outputs, targets a chunk
    sampled: list[Any]  # a few samples from a few places of the data, for the certificate


def run_pass(
    surface: Surface, plan: Plan, needs: Needs, *, head: Head | None, chunk: int, seed: int = 0
) -> Pass:
    """Go over the data once."""
    before = surface.cost
    sweep = Sweep(surface, plan, kappa=needs.kappa, rho=needs.rho) if needs.sweep else None
    result = Pass(
        needs=needs,
        num_samples=0,
        cost=Cost(),
        sweep=sweep.sums if sweep is not None else Sums(surface),
        head=Moments(["trace", "kappa"], surface.device),
        softmax=Moments(["gini"], surface.device),
        features=[],
        sampled=[],
    )
    watch = head.module if needs.head and head is not None else None
    generator = torch.Generator().manual_seed(seed)
    for index, (where, batch) in enumerate(surface.chunks(chunk)):
        _sample(result.sampled, index, batch, generator)
        if sweep is not None:
            outputs, targets, curvature = sweep.run(batch, where, watch)
        else:
            with torch.no_grad():
                outputs, targets = surface.outputs(batch, where=where, watch=watch)
                curvature = surface.loss.curvature(outputs.double(), targets)
        result.num_samples += len(outputs)
        with torch.no_grad():
            weights = surface.loss.weights(outputs, targets).double()
            if watch is not None and head is not None:
                assert surface.watched is not None
                _add_head(result, head, surface.watched, outputs, targets, curvature, weights)
            if needs.softmax and isinstance(curvature, SoftmaxCurvature):
                result.softmax.add((curvature.gini() * weights)[None], weights)
    result.cost = surface.cost - before
    return result


def _sample(kept: list[Any], index: int, batch: Any, generator: torch.Generator) -> None:
    """Reservoir sampling: every chunk of the data is kept with the same probability."""
    place = index
    if index >= SAMPLED_CHUNKS:
        place = int(torch.randint(index + 1, (), generator=generator))
        if place >= SAMPLED_CHUNKS:
            return
    length = _batches.num_samples(batch)
    order = torch.randperm(length, generator=generator)[:SAMPLES_A_CHUNK]
    first = _batches.tensors(batch)[0]
    part = _batches.take(batch, order.to(first.device))
    kept[place : place + 1] = [part]


def _add_head(
    result: Pass,
    head: Head,
    a: Tensor,
    outputs: Tensor,
    targets: Tensor,
    curvature: OutputCurvature,
    weights: Tensor,
) -> None:
    features = head.features(a).double()
    rows = [
        head_trace(curvature, features),
        head_kappa(curvature, features, head.weight().double()),
    ]
    result.head.add(torch.stack(rows), weights)
    if result.needs.features:
        result.features.append((features.cpu(), outputs.detach().cpu(), targets.cpu()))
