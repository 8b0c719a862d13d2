"""Moving a network along its symmetries, and measuring it again."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, SequentialSampler

from ... import symmetries
from ...engine.precision import EXACT_COLUMNS, Method
from ...ground.errors import SpiritlevelError
from ...ground.need import is_whole, need, whole
from ...measures import get, registered_cards
from ...measures.asked import MEASURES, Asked
from ...measures.confounders import MEASURED_ALONG
from ...measures.setup import OfMeasures, Setup
from ...measures.verb import verb
from ...model import batches as _batches
from ...model.arguments import ArgumentCheck
from ...model.arithmetic import full_precision
from ...model.batches import BatchLocation
from ...model.distributed import Processes
from ...model.findings import share
from ...model.losses import common_shift
from ...model.surface import Surface
from ...records.measurements import Cost, Report
from ...symmetries import CONFIDENCE_ONLY, DOWN, UP
from .. import measuring as api
from .affording import on_all, within
from .record import Audit, differs, is_small, ratio

if TYPE_CHECKING:
    from typing_extensions import Unpack


View = Callable[[Tensor], Tensor]
KEPT_BYTES = 1 << 28  # of the original's outputs, which would take a pass for every copy


class OutputCheck:
    """Compares outputs of copies with the original's, which are computed once where that is sure.

    That is where the data come in the same order every time.
    """

    def __init__(self, setup: Setup, model: nn.Module, data: Iterable[Any], seen: View) -> None:
        """`seen` is what the loss sees of outputs."""
        self.setup, self.model, self.data, self.seen = setup, model, data, seen
        self.cost = Cost()
        is_loader = isinstance(data, DataLoader) and isinstance(data.sampler, SequentialSampler)
        self._keeps = is_loader or isinstance(data, list | tuple)
        self._kept: list[Tensor] = []

    def deviation(self, moved: nn.Module, growth: float) -> float:
        """How far outputs on all data are from `growth` times the original's, beside the largest.

        As far as the loss sees them.
        """
        processes = Processes(join=self.setup.distributed)
        original, copied = (self._surface(each, processes) for each in (self.model, moved))
        apart = largest = 0.0
        with processes.together(), original.preserved(), full_precision(), torch.no_grad():
            for before, after in self._pairs(original, copied):
                if before.numel():
                    largest = max(largest, float((growth * before).abs().max()))
                    off = float((after - growth * before).abs().max())
                    apart = max(apart, math.inf if math.isnan(off) else off)
        self.cost += original.cost + copied.cost
        both = processes.gather((apart, largest))
        apart, largest = (max(parts) for parts in zip(*both, strict=True))
        return apart / largest if largest else apart

    def _surface(self, model: nn.Module, processes: Processes) -> Surface:
        loss, forward = self.setup.loss, self.setup.forward
        return Surface(model, self.data, loss=loss, forward=forward, processes=processes)

    def _pairs(self, original: Surface, copied: Surface) -> Iterator[tuple[Tensor, Tensor]]:
        """What the loss sees of the original's outputs and of the copy's, batch by batch."""
        known, kept = self._kept, list[Tensor]()
        for where, batch in original.batches():
            if known:
                before = known[where.batch].to(original.device)
            else:
                before = self._outputs(original, batch, where)
                kept.append(before.cpu())
            yield before, self._outputs(copied, batch, where)
        if self._keeps and not known and sum(each.nbytes for each in kept) <= KEPT_BYTES:
            self._kept = kept

    def _outputs(self, surface: Surface, batch: Any, where: BatchLocation) -> Tensor:
        outputs, _ = surface.outputs(batch, where=where, may_overflow=True)
        return self.seen(outputs.double())


NUM_VARIED = 16  # samples, changed in many ways, that show whether symmetries were missed
NUM_SAMPLES = 4  # that the search for symmetries runs on; what it finds is verified on all
BUDGET = 60.0  # forward-backwards for measures that were not named
MOST_DRAWS = 10_000  # of a move; each of them is kept as a report
LAST_DIGITS = 1e4  # by which rounding may change outputs when weights are multiplied by up to 25


@verb(
    measures=MEASURES,
    draws=ArgumentCheck(is_whole, "a whole number, such as 3"),
    budget=api.BUDGET_CHECK,
)
def audit(
    setup: Setup,
    model: nn.Module,
    data: Iterable[Any],
    *,
    measures: str | Sequence[str] | None = None,
    method: Method | None = None,
    draws: int = 3,
    budget: float | None = None,
    **shared: Unpack[OfMeasures],
) -> Audit:
    """Find out which measures can be trusted for this network. The model is left exactly as it was.

    The network's symmetries are found by running it, and the measures are taken again on copies
    moved by random factors between 5 and 25 (all weights at once: 1.5 to 2.5, since the layers
    multiply) or by their inverses, once all of its outputs on the data are verified to be what they
    were, or for the moves of confidence one multiple of that. Traces of smooth networks are those
    of the GGN, which moves as the Hessian does and can be had exactly; pass method="auto" for the
    Hessian's own.

    Args:
        model: a network in eval mode.
        data: as for `measure`.
        measures: names or patterns; None takes those that suit the network, its largest
            eigenvalue and its worst-case sharpness. The confounders are always added.
        method: as for `measure`; None takes the exact GGN, or by output probes where the network
            has many outputs.
        draws: how often each move is made, with other factors every time: above 1, below 1, then
            some above and some below. The verdict rests on the worst. What shows a large change and
            takes a search or products with the Hessian is not drawn again.
        budget: how many forward-backwards over the data all of it may take. Measures are then taken
            on as many samples as that allows, 8 at least, with searches of 5 steps, and what does
            not fit is left out and named with its price; outputs are verified on all data. None: 60
            for the default measures of a network with more than 20,000 weights, and no limit for
            measures that you name; nor has math.inf.
        seed: of the factors and of everything random in the measures.
        progress: called with (steps done, steps in all, what is being done).

    The other arguments are those of `measure`.
    """
    need(
        "draws",
        draws,
        whole(least=1, most=MOST_DRAWS),
        f"from 1 to {MOST_DRAWS:,}: for each draw of each move the network is measured again",
        "Three draws try factors above 1, below 1, and both.",
        of="audit",
    )
    also = list(MEASURED_ALONG)
    if measures is None:
        also += [card.name for card in registered_cards() if card.in_audit]
    tell = setup.progress or (lambda done, total, text: None)
    tell(0, 1, "looking for symmetries")
    found = _find(setup, model, data)
    symmetries_found = found.symmetries
    if method is None:  # without weight probes, whose noise could hide what a move does
        method = "exact" if found.num_outputs <= EXACT_COLUMNS else "output_probes"
    silent = dataclasses.replace(setup, method=method, progress=None)
    towards = {name: _towards(move, draws) for name, move in symmetries_found.moves.items()}
    steps = sum(map(len, towards.values())) + 2
    if budget is None:
        budget = api.usual_budget(found.size, measures, BUDGET)
    if math.isfinite(budget):
        counts = {name: len(each) for name, each in towards.items()}
        asked, spent = Asked.read(measures, also), found.cost.forward_backwards / found.num_samples
        afforded = within(budget, silent, model, data, asked=asked, draws=counts, spent=spent)
    else:
        afforded = on_all(silent, data, steps - 2)
    check = OutputCheck(setup, model, data, found.seen or _all)

    def measured(subject: nn.Module, without: Iterable[str]) -> Report:
        if subject is not model:
            share(model, subject)
        return api.measured(
            afforded.setup,
            subject,
            afforded.data,
            measures=measures,
            also=also,
            without={*afforded.left_out, *without},
        )

    tell(1, steps, f"planned: {afforded.plan}")
    tell(1, steps, "measuring")
    original = measured(model, ())
    cost = found.cost + original.cost
    reports: dict[str, list[Report]] = {}
    absent, done = dict(symmetries_found.absent), 1
    unmeasured: list[str] = []
    for name, move in symmetries_found.moves.items():
        generator = torch.Generator().manual_seed(setup.seed)
        settled: set[str] = set()
        for variant, direction in zip(cycle(move.variants), towards[name], strict=False):
            done += 1
            tell(done, steps, f"measuring after {name}")
            moved, growth = _moved(model, variant, generator, direction)
            apart = check.deviation(moved, growth)
            if apart <= max(symmetries_found.tolerance, move.remainder, _rounding(model)):
                try:
                    report = measured(moved, settled)
                except SpiritlevelError as error:  # what was measured so far is worth keeping
                    reports.pop(name, None)
                    absent[name] = f"a copy of the network could not be measured: {error}"
                    unmeasured.append(name)
                    break
                reports.setdefault(name, []).append(report)
                cost += report.cost
                if math.isfinite(budget):
                    settled |= _settled(original, report)
            elif name not in reports:
                absent[name] = (
                    f"it holds on {NUM_SAMPLES} samples and not on all: outputs are up to "
                    f"{apart:.2g} of the largest away from what they should be"
                )
                break
    tell(steps, steps, "done")
    return Audit(
        original,
        reports,
        moves={name: symmetries_found.moves[name].describe() for name in reports},
        absent=absent,
        unexplored=_unexplored(symmetries_found.unexplored, unmeasured),
        measured_on=afforded.note,
        left_out=afforded.left_out,
        cost=cost + check.cost,
    )


def _settled(before: Report, after: Report) -> set[str]:
    """Measures that take a search or products, and that a draw has changed by a large factor."""
    return {
        name
        for name, m in after.items()
        if (get(name).needs.products or get(name).found_by == "search")
        and differs(before[name], m)
        and not is_small(ratio(before[name].value, m.value))
    }


def _unexplored(before: str, unmeasured: list[str]) -> str:
    """Why symmetries may have been missed; those whose copies could not be measured were."""
    missed = f"no copy could be measured after {', '.join(unmeasured)}" if unmeasured else ""
    return "; ".join(part for part in (before, missed) if part)


def _towards(move: symmetries.Move, draws: int) -> list[int]:
    """Where the factors of each draw lie; every variant of the move is drawn."""
    if move.name == "unit_permute":  # has no factors: any order is as good as another
        return [UP]
    possible = (UP, DOWN) if move.name in CONFIDENCE_ONLY else move.towards
    count = max(draws, len(move.variants))
    return [possible[index % len(possible)] for index in range(count)]


def _moved(
    model: nn.Module, move: symmetries.Move, generator: torch.Generator, towards: int
) -> tuple[nn.Module, float]:
    """A moved copy, and by what its outputs must be multiplied."""
    if move.name not in CONFIDENCE_ONLY:
        return move.apply(model, generator, towards), 1.0
    factor = move.draw(generator, towards)
    return move.at(model, factor), factor**move.power


def _all(outputs: Tensor) -> Tensor:
    return outputs


def _rounding(model: nn.Module) -> float:
    """What rounding alone may do to outputs, in the precision that the model has.

    In half precision that is more than any move does: what was verified on a few samples in double
    precision must suffice there.
    """
    types = {p.dtype for p in model.parameters() if p.is_floating_point()}
    return LAST_DIGITS * max((torch.finfo(dtype).eps for dtype in types), default=0.0)


@dataclasses.dataclass(frozen=True)
class _Found:
    """The symmetries of a network, and what was seen of it on the way."""

    symmetries: symmetries.FoundMoves
    num_outputs: int
    num_samples: int
    size: int  # how many weights are measured
    cost: Cost
    seen: View | None  # what the loss sees of outputs, if that is less than all


def _find(setup: Setup, model: nn.Module, data: Iterable[Any]) -> _Found:
    """The symmetries of the network, looked for on its first samples."""
    loss, forward = setup.loss, setup.forward
    with dataclasses.replace(setup.whole(), progress=None).opened(model, data) as workspace:
        batch = workspace.surface.first_samples(NUM_SAMPLES)
        more = workspace.surface.first_samples(NUM_VARIED)
        try:
            head: str | None = workspace.head.layer
        except SpiritlevelError:
            head = None
        num_outputs, num_samples = workspace.plan.num_outputs, workspace.num_samples
        size = sum(p.numel() for p in workspace.surface.parameters.values())
        surface = workspace.surface
        with surface.preserved(), torch.no_grad():
            outputs, targets = surface.outputs(more, where=BatchLocation(0))
        seen = _view(common_shift(surface.loss, outputs, targets))

    costs = [surface.cost]

    def on(chosen: Any) -> Callable[[nn.Module], Tensor]:
        def run(network: nn.Module) -> Tensor:
            dtype = next((p.dtype for p in network.parameters() if p.is_floating_point()), None)
            cast = _batches.map_tensors(
                lambda t: t.to(dtype) if t.is_floating_point() else t, chosen
            )
            place = Surface(network, [cast], loss=loss, forward=forward)
            outputs, _ = place.outputs(cast, where=BatchLocation(0))
            costs.append(place.cost)
            return outputs

        return run

    found = symmetries.find_moves(
        model,
        on(batch),
        head=head,
        vary=lambda index: on(_batches.map_tensors(lambda t: _varied(t, index), more)),
        seen=seen,
        generator=torch.Generator().manual_seed(setup.seed),
    )
    return _Found(found, num_outputs, num_samples, size, sum(costs, Cost()), seen)


def _view(dim: int | None) -> View | None:
    """What is left of outputs if their mean along a dimension does not matter."""
    if dim is None:
        return None
    return lambda outputs: outputs - outputs.mean(dim=dim, keepdim=True)


def _varied(values: Tensor, index: int) -> Tensor:
    """Other values of the same kind: noise is added to numbers, tokens are exchanged.

    Whole numbers, and labels that are 0 or 1, change places with those of other samples, at the
    same position and alike in all tensors of a shape, so that masks still fit tokens.
    """
    draw = torch.Generator().manual_seed(index)
    if values.is_floating_point() and not bool(((values == 0) | (values == 1)).all()):
        noise = torch.randn(values.shape, generator=draw)
        shift = torch.randn(len(values), *[1] * (values.dim() - 1), generator=draw)
        size = values.double().std(correction=0).to(values)
        return values + torch.where(size > 0, size, 1.0) * (noise + shift).to(values)
    order = torch.rand(values.shape[: min(values.dim(), 2)], generator=draw).argsort(dim=0)
    order = order.to(values.device)
    if values.dim() < 2:
        return values[order]
    return values[order, torch.arange(values.shape[1], device=values.device)]
