"""How the outputs change when all weights grow together: Dz[θ], the derivative along θ itself.

Three ways give the same numbers:

forward      a forward derivative: one run of the network.
reverse      the derivative of ⟨Jᵀu, θ⟩ in u: a backward, and a backward through it.
difference   z(θ + hθ) − z(θ − hθ) over 2h, extrapolated from h and 2h: needs the outputs only, and
             loses a few digits.

A forward derivative goes on where `no_grad` ends a gradient: it is taken only where both agree on
two samples.

A network is homogeneous if z(cθ) = c^k z(θ) for every c > 0, with one k for all inputs. Networks of
rectifiers and pooling without biases are, and k is then the number of weights on a path from input
to output. The derivative along θ is k·z, so it costs no derivative at all.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor

from ...engine.moments import Moments
from ...engine.workspace import Workspace
from ...ground.errors import NotApplicable, SpiritlevelError, is_out_of_memory
from ...model import batches as _batches
from ...model.arithmetic import full_precision
from ...model.autograd_graph import lacks_second_derivative
from ...model.batches import BatchLocation
from ...model.losses import CrossEntropy, Loss
from ...model.model_state import twice_differentiable
from ...model.surface import Surface
from ...records.measurements import Cost
from ..registry import once

DerivativeMethod = Literal["forward", "reverse", "difference"]


@dataclasses.dataclass(frozen=True)
class Pushed:
    """A batch with the derivative of its outputs along the weights."""

    outputs: Tensor
    targets: Tensor
    along: Tensor  # Dz[θ]
    rough: Tensor | None = None  # the same by a longer step, where steps were taken


@dataclasses.dataclass(frozen=True)
class Radial:
    """Σ over the data; rows "labels" and "model", and by the longer step as "… (rough)"."""

    moments: Moments
    method: DerivativeMethod
    cost: Cost

    def residual(self, row: str) -> float | None:
        """How far the value may be off; None where it is known to round-off."""
        if self.method != "difference":
            return None
        return abs(self.moments.mean([row]) - self.moments.mean([f"{row} (rough)"]))


@once
def radial(workspace: Workspace) -> Radial:
    """One pass over the data, for all measures that ask for it."""
    surface = workspace.surface
    method = choose_method(surface)
    before = workspace.cost
    moments = Moments(["labels", "model", "labels (rough)", "model (rough)"], surface.device)
    chunk = workspace.perturbed.gradient_chunk if method == "reverse" else workspace.perturbed.chunk
    with surface.processes.together(), full_precision(), twice_differentiable():
        for where, batch in surface.chunks(max(1, chunk // 2)):
            pushed = push(surface, batch, where, method)
            rows = _rows(surface.loss, pushed, pushed.along)
            rows += rows if pushed.rough is None else _rows(surface.loss, pushed, pushed.rough)
            weights = surface.loss.weights(pushed.outputs, pushed.targets).double()
            moments.add(torch.stack(rows), weights)
    moments.reduce(surface.processes)
    return Radial(moments, method, workspace.cost - before)


def _rows(loss: Loss, pushed: Pushed, along: Tensor) -> list[Tensor]:
    """Σ over a sample for the labels it has and for those that the model would draw."""
    outputs, targets = pushed.outputs, pushed.targets
    return [
        squared_slopes(loss, outputs, targets, along),
        _curved(loss, outputs, targets, along),
    ]


def squared_slopes(loss: Loss, outputs: Tensor, targets: Tensor, along: Tensor) -> Tensor:
    """Σ over the positions of w ⟨∇_z ℓ, v⟩², shape (N,), for the loss ℓ before its weight w.

    Where the loss has no positions of its own, a sample is one, and ℓ is the mean over it.
    """
    wide = outputs.detach().double().requires_grad_()
    with torch.enable_grad():
        (gradient,) = torch.autograd.grad(loss.values(wide, targets).sum(), wide)
    terms = gradient.reshape(len(outputs), -1) * _centred(loss, outputs, targets, along)
    if not isinstance(loss, CrossEntropy):
        return _over_weight(terms.sum(dim=1), loss.weights(outputs, targets).double())
    positions = loss.positions(outputs, targets)
    rows = positions.rows(terms)
    weights = loss.row_weights(rows, loss.row_targets(targets, positions))
    return positions.by_sample(_over_weight(rows.sum(dim=1), weights)).sum(dim=1)


def _over_weight(slopes: Tensor, weights: Tensor) -> Tensor:
    """(w s)² / w; nothing where the weight is 0."""
    shown = weights > 0
    return torch.where(shown, slopes.square() / torch.where(shown, weights, 1.0), 0.0)


def _curved(loss: Loss, outputs: Tensor, targets: Tensor, along: Tensor) -> Tensor:
    v = _centred(loss, outputs, targets, along)
    curvature = loss.curvature(outputs.detach().double(), targets)
    return (v * curvature.apply(v)).sum(dim=1)


def _centred(loss: Loss, outputs: Tensor, targets: Tensor, v: Tensor) -> Tensor:
    """In float64, shape (N, elements).

    A softmax does not depend on what all classes have in common. Taken relative to the largest
    class, the sums have no term that nearly cancels when a network is confident.
    """
    flat = v.detach().double().reshape(len(v), -1)
    if not isinstance(loss, CrossEntropy):
        return flat
    positions = loss.positions(outputs, targets)
    top = positions.rows(outputs.detach()).argmax(dim=1, keepdim=True)
    rows = positions.rows(flat)
    return positions.flat(rows - rows.gather(1, top))


# -- the derivative ------------------------------------------------------------------------------


def push(surface: Surface, batch: Any, where: BatchLocation, method: DerivativeMethod) -> Pushed:
    """Outputs, targets and Dz[θ] of a batch."""
    return {"forward": _forward, "reverse": _reverse, "difference": _difference}[method](
        surface, batch, where
    )


def choose_method(surface: Surface) -> DerivativeMethod:
    """The cheapest method that the model admits and that agrees with its gradients."""
    batch = surface.first_samples(2)
    derivatives: dict[DerivativeMethod, Tensor] = {}
    methods: tuple[DerivativeMethod, ...] = ("forward", "reverse")
    for method in methods:
        try:
            with full_precision(), twice_differentiable():
                derivatives[method] = push(surface, batch, BatchLocation(0), method).along
        except (RuntimeError, NotImplementedError) as error:
            if isinstance(error, SpiritlevelError) or is_out_of_memory(error):
                raise
    if "reverse" not in derivatives:
        return "forward" if "forward" in derivatives else "difference"
    if "forward" in derivatives:
        gap = float((derivatives["forward"] - derivatives["reverse"]).abs().max())
        eps = torch.finfo(derivatives["reverse"].dtype).eps
        if gap <= 1e4 * eps * float(derivatives["reverse"].abs().max()):
            return "forward"
    return "reverse"


def _weights(surface: Surface) -> dict[str, Tensor]:
    return {name: p.detach() for name, p in surface.parameters.items()}


def _forward(surface: Surface, batch: Any, where: BatchLocation) -> Pushed:
    with torch.no_grad(), forward_ad.dual_level():
        duals = {name: forward_ad.make_dual(p, p) for name, p in _weights(surface).items()}
        outputs, targets = surface.outputs(batch, where=where, parameters=duals)
        value, along = forward_ad.unpack_dual(outputs)
        along = torch.zeros_like(value) if along is None else along
    surface.cost += Cost(products=len(outputs))
    return Pushed(value.detach(), targets, along.detach())


def _reverse(surface: Surface, batch: Any, where: BatchLocation) -> Pushed:
    leaves = {name: p.requires_grad_() for name, p in _weights(surface).items()}
    with torch.enable_grad():
        outputs, targets = surface.outputs(batch, where=where, parameters=leaves)
        u = torch.zeros_like(outputs, requires_grad=True)
        pulled = torch.autograd.grad(
            outputs, list(leaves.values()), u, create_graph=True, allow_unused=True
        )
        if lacks_second_derivative(pulled):
            raise RuntimeError("a function in the model is differentiable only once")
        pairs = [(g, p.detach()) for g, p in zip(pulled, leaves.values(), strict=True)]
        live = [(g, p) for g, p in pairs if g is not None and g.requires_grad]
        along = torch.zeros_like(outputs)
        if live:
            (along,) = torch.autograd.grad([g for g, _ in live], u, [p for _, p in live])
    surface.cost += Cost(backwards=2 * len(outputs))
    return Pushed(outputs.detach(), targets, along.detach())


def _difference(surface: Surface, batch: Any, where: BatchLocation) -> Pushed:
    with torch.no_grad():
        outputs, targets = surface.outputs(batch, where=where)
        step = torch.finfo(outputs.dtype).eps ** (1 / 5)  # round-off and the fifth order meet here
        function = surface.function(batch)

        def at(factor: float) -> Tensor:
            surface.cost += Cost(forwards=_batches.num_samples(batch))
            return function({n: factor * p for n, p in _weights(surface).items()}).double()

        short = (at(1 + step) - at(1 - step)) / (2 * step)
        long = (at(1 + 2 * step) - at(1 - 2 * step)) / (4 * step)
    return Pushed(outputs, targets, (4 * short - long) / 3, short)


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
    degree = _first_degree(workspace)
    if degree is None:
        raise _refusal(workspace.surface, name)
    return degree


@once
def _first_degree(workspace: Workspace) -> int | None:
    surface = workspace.surface
    batch = surface.first_samples(PROBE_SAMPLES)
    with torch.no_grad(), full_precision():
        outputs, _ = surface.outputs(batch, where=BatchLocation(0))
        return _degree(outputs, _doubled(surface, batch))


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
