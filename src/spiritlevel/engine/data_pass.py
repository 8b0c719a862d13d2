"""One pass over the data that computes the sweep, the head and the softmax together.

It also certifies exactness: H = GGN + Σ_c ∂ℓ/∂z_c · ∇²z_c, and the second part vanishes where the
outputs are piecewise linear in a weight (ReLU, max pooling, eval-mode BatchNorm, residual sums).
Every chunk of the data is asked for it, by the graph that autograd recorded for that chunk
(`model.linearity`).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import torch
from torch import Tensor

from ..ground.errors import SpiritlevelError
from ..math.curvature import SoftmaxCurvature
from ..math.positions import OutputCurvature, PositionCurvature
from ..model import batches as _batches
from ..model.distributed import Processes
from ..model.losses import CrossEntropy
from ..model.losses.protocol import Loss
from ..model.surface import Surface
from ..records.measurements import Cost
from ..records.reading import to_json_float
from .activity import ActivationSites, Activity, observed
from .head.head_layer import Head, head_input
from .head.rows import HeadBlock, block_of_outputs, block_of_tokens, margins_of_tokens
from .moments import Moments
from .plan import MeasuringPlan
from .second_look import doubts_about
from .sweep.backward import Probes, Sweep
from .sweep.feature_scales import Scales
from .sweep.sums import RowKind, SweepSums


class LossAndAccuracy:
    """Sums of losses, of wrong predictions and of weights, taken along with another pass."""

    def __init__(self, loss: Loss, device: torch.device) -> None:
        self._loss = loss
        self._sums = torch.zeros(3, dtype=torch.float64, device=device)

    @torch.no_grad()
    def add(self, outputs: Tensor, targets: Tensor) -> None:
        """Count a batch."""
        loss = self._loss
        sums = [loss.values(outputs.double(), targets), loss.weights(outputs, targets)]
        if isinstance(loss, CrossEntropy):
            sums.insert(1, loss.errors(outputs, targets))
        else:
            sums.insert(1, torch.zeros_like(sums[1]))
        self._sums += torch.stack([each.double().sum() for each in sums])

    def reduce(self, processes: Processes) -> None:
        """Add up over all processes."""
        processes.sum_(self._sums)
        self._sums = self._sums.cpu()

    @property
    def mean_loss(self) -> float | None:
        """The mean loss over all samples; None where no batch was counted."""
        total, _, weight = self._sums.tolist()
        return total / weight if weight else None

    @property
    def accuracy(self) -> float | None:
        """The share of targets that are predicted; None where there are no classes."""
        _, wrong, weight = self._sums.tolist()
        return 1 - wrong / weight if weight and isinstance(self._loss, CrossEntropy) else None

    def to_dict(self) -> dict[str, Any]:
        """Loss and accuracy for a report; empty where no batch was counted."""
        if self.mean_loss is None:
            return {}
        return {"mean_loss": to_json_float(self.mean_loss), "accuracy": self.accuracy}


@dataclasses.dataclass(frozen=True)
class Certificate:
    """Whether the outputs are piecewise linear in a parameter, on all the data."""

    linear: bool
    reason: str = ""


def certify(parameters: Iterable[str], bends: Mapping[str, str]) -> dict[str, Certificate]:
    """One certificate per parameter; `bends` names those that bend the outputs, and by what."""
    return {
        name: Certificate(False, f"the outputs bend along it (through {bends[name]})")
        if name in bends
        else Certificate(True)
        for name in parameters
    }


@dataclasses.dataclass(frozen=True)
class Needs:
    """What a pass over the data should compute."""

    sweep: bool = False
    kappa: bool = False
    standardized: bool = False  # also κ with standardized features; only together with κ
    rho: bool = False
    head: bool = False
    features: bool = False  # keep the rows of the head, for λ_max and Tr H²
    softmax: bool = False
    activity: bool = False  # which outputs of rectifiers are 0, and the norms of layers' inputs
    margins: bool = False  # of every target that counts
    products: bool = False  # Hessian products follow later; needs nothing of the pass itself

    def __or__(self, other: Needs) -> Needs:
        return Needs(
            **{
                field.name: getattr(self, field.name) or getattr(other, field.name)
                for field in dataclasses.fields(self)
            }
        )

    @property
    def derivatives(self) -> bool:
        """Whether any of it is made of derivatives of the loss."""
        return self.sweep or self.kappa or self.rho or self.head or self.features or self.products

    @property
    def without_sweep(self) -> Needs:
        """What is left if nothing is pulled back through the network."""
        return dataclasses.replace(self, sweep=False, kappa=False, standardized=False, rho=False)

    def covers(self, other: Needs) -> bool:
        """Whether a pass for these needs also serves `other`."""
        return (self | other) == self


NEEDS: dict[RowKind, Needs] = {
    "trace": Needs(sweep=True),
    "kappa": Needs(sweep=True, kappa=True),
    "kappa_std": Needs(sweep=True, kappa=True, standardized=True),
    "kappa_var": Needs(sweep=True, kappa=True, standardized=True),
    "rho": Needs(sweep=True, rho=True),
}


@dataclasses.dataclass(frozen=True)
class Budget:
    """How much a pass may hold in memory."""

    chunk: int  # samples at a time
    memory: int = 1 << 62  # bytes of head rows to keep for later
    stream: int | None = None  # bytes for a head whose outputs are not formed; None forms them


@dataclasses.dataclass
class PassResult:
    """What a pass over the data computed."""

    needs: Needs
    num_samples: int
    total_weight: float  # what sums over the data are divided by
    cost: Cost
    sweep: SweepSums  # trace, κ and ρ; empty unless the sweep was needed
    head: Moments  # rows "trace" and "kappa"
    softmax: Moments  # rows "gini", "entropy" and "confidence"
    margin: Moments  # row "margin": of the targets that count, whatever their class weight
    margins: list[Tensor]  # every single margin, on the host
    fit: LossAndAccuracy  # counts nothing where the outputs were never formed
    activity: Activity | None
    blocks: list[HeadBlock] | None  # None if they did not fit
    bends: dict[str, str]  # parameters of which no sums are the Hessian's, in any process, and why
    look_again: Callable[[], dict[str, str]]  # the second look at exact values
    streamed: bool  # whether the head's outputs were never formed
    whole: SweepSums | None = None  # the sweep's, completed to the Hessian by elementwise functions

    @functools.cached_property
    def doubts(self) -> dict[str, str]:
        """Parameters whose exact values a second look does not confirm, and why."""
        return self.look_again()


def run_pass(
    surface: Surface,
    plan: MeasuringPlan,
    needs: Needs,
    *,
    head: Head | None,
    budget: Budget,
    seed: int = 0,
    probes: Probes | None = None,
    sites: ActivationSites | None = None,
    scales: Scales | None = None,
    elements: bool = False,
) -> PassResult:
    """Go over the data once, in all processes; `scales` are those of the standardized features."""
    sweep = None
    if needs.sweep:
        sweep = Sweep(
            surface,
            plan,
            kappa=needs.kappa,
            rho=needs.rho,
            probes=probes,
            scales=scales,
            memory=budget.memory,
            elements=elements,
        )
    before = surface.cost
    result = PassResult(
        needs=needs,
        num_samples=0,
        total_weight=0.0,
        cost=Cost(),
        sweep=sweep.sums if sweep is not None else SweepSums({}, surface.device),
        whole=None if sweep is None or sweep.elements is None else sweep.elements.sums,
        head=Moments(["trace", "kappa"], surface.device),
        softmax=Moments(["gini", "entropy", "confidence"], surface.device),
        margin=Moments(["margin"], surface.device),
        margins=[],
        fit=LossAndAccuracy(surface.loss, surface.device),
        activity=None if sites is None else Activity(surface, sites),
        blocks=[],
        bends={},
        look_again=dict,
        streamed=budget.stream is not None,
    )
    watch = head.module if needs.head and head is not None else None
    total = torch.zeros((), dtype=torch.float64, device=surface.device)
    observer = None if result.activity is None else result.activity.observer
    with surface.processes.together(), observed(surface, observer):
        for where, batch in surface.chunks(budget.chunk):
            result.num_samples += _batches.num_samples(batch)
            if result.activity is not None:
                result.activity.num_samples = _batches.num_samples(batch)
            if budget.stream is not None and head is not None:
                with torch.no_grad():
                    a, targets = surface.features(batch, where=where, head=head.module)
                    total += _add_tokens(surface, result, head, a, targets, budget)
                continue
            if sweep is not None:
                outputs, targets, curvature = sweep.run(batch, where, watch)
            else:
                with torch.no_grad():
                    outputs, targets = surface.outputs(batch, where=where, watch=watch)
                    curvature = surface.loss.curvature(outputs.double(), targets)
            result.fit.add(outputs.detach(), targets)
            with torch.no_grad():
                sample_weights = surface.loss.weights(outputs, targets).double()
                total += sample_weights.sum()
                if watch is not None and head is not None:
                    features = head_input(head, surface.watched, outputs, str(where))
                    rows = block_of_outputs(head, features, outputs, curvature)
                    _add_head(result, rows, head, sample_weights, len(outputs), budget)
                if isinstance(surface.loss, CrossEntropy):
                    if needs.softmax:
                        sums = _softmax_sums(surface.loss, outputs, targets, curvature)
                        result.softmax.add(sums, sample_weights)
                    if needs.margins:
                        _add_margins(result, *surface.loss.margins(outputs.double(), targets))
    if sweep is not None:
        sweep.finish()
        result.bends = sweep.bends
        result.look_again = functools.partial(doubts_about, sweep, seed, budget.chunk)
    _reduce(surface, result, total, complete=sweep is not None and not sweep.uncertified)
    result.cost = surface.processes.total_cost(surface.cost - before)
    return result


def _reduce(surface: Surface, result: PassResult, total: Tensor, *, complete: bool) -> None:
    """Add up over the processes, and refuse data in which no target counts.

    The sums are `complete` if the Hessian has no other part, in all processes.
    """
    processes = surface.processes
    for bends in processes.gather(result.bends):
        result.bends = bends | result.bends
    complete = all(processes.gather(complete))
    result.sweep.reduce(processes)
    if result.whole is not None:
        result.whole.reduce(processes)
        result.whole = result.whole if complete else None
    if complete:
        result.bends = {}
    for moments in (result.head, result.softmax, result.margin):
        moments.reduce(processes)
    result.fit.reduce(processes)
    if result.activity is not None:
        result.activity.reduce(processes)
    if result.needs.margins:
        mine = torch.cat([*result.margins, torch.zeros(0, dtype=torch.float64)])
        result.margins = processes.gather(mine)
    processes.sum_(total)
    result.total_weight = float(total)
    result.num_samples = sum(processes.gather(result.num_samples))
    if result.total_weight == 0.0:
        raise SpiritlevelError(
            f"The data must hold at least one target that counts. All of {result.num_samples} "
            "samples are ignored, masked or have class weight 0. Check ignore_index, the mask and "
            "the labels."
        )


def _add_head(
    result: PassResult,
    block: HeadBlock,
    head: Head,
    weights: Tensor,
    num_samples: int,
    budget: Budget,
) -> None:
    """Add up rows by sample: samples are independent, and their spread gives the data error."""
    rows = torch.stack(block.trace_and_kappa(head.weight()))
    rows = rows.reshape(2, num_samples, -1).sum(dim=2)
    result.head.add(rows, weights.reshape(num_samples, -1).sum(dim=1))
    if result.needs.features and result.blocks is not None:
        kept = sum(stored.nbytes for stored in result.blocks) + block.nbytes
        result.blocks.append(block)
        if kept > budget.memory:
            result.blocks = None
        elif kept > budget.memory // 4:  # the device has other things to hold
            result.blocks = [stored.on_host() for stored in result.blocks]


def _softmax_sums(
    loss: CrossEntropy, outputs: Tensor, targets: Tensor, curvature: OutputCurvature
) -> Tensor:
    """Σ over the positions of weight × Gini, entropy and confidence, shape (3, N)."""
    rows = curvature.rows if isinstance(curvature, PositionCurvature) else curvature
    assert isinstance(rows, SoftmaxCurvature)
    positions = loss.positions(outputs, targets)
    weights = loss.row_weights(rows.p, loss.row_targets(targets, positions))
    values = (rows.gini(), rows.entropy(), rows.p_top)
    return torch.stack([positions.by_sample(v * weights).sum(dim=1) for v in values])


def _add_tokens(
    surface: Surface, result: PassResult, head: Head, a: Tensor, targets: Tensor, budget: Budget
) -> Tensor:
    """Add a batch whose outputs are never formed; returns its weight."""
    assert budget.stream is not None
    if result.needs.margins:
        loss = cast(CrossEntropy, surface.loss)
        margins, shown = margins_of_tokens(head, loss, a, targets, budget.stream)
        _add_margins(result, margins.reshape(len(a), -1), shown.reshape(len(a), -1))
    block, weights = block_of_tokens(surface, head, a, targets, budget.stream)
    by_sample = weights.reshape(len(a), -1).sum(dim=1)
    _add_head(result, block, head, weights, len(a), budget)
    values = (block.sums.gini, block.sums.entropy, block.sums.confidence)
    sums = [(v * weights).reshape(len(a), -1).sum(dim=1) for v in values]
    result.softmax.add(torch.stack(sums), by_sample)
    return weights.sum()


def _add_margins(result: PassResult, margins: Tensor, shown: Tensor) -> None:
    """Margins have shape (N, positions); each counts once, whatever its class weight."""
    zeros = torch.zeros_like(margins)
    sums = torch.where(shown, margins, zeros).sum(dim=1)
    result.margin.add(sums[None], shown.sum(dim=1).double())
    result.margins.append(margins[shown].cpu())
