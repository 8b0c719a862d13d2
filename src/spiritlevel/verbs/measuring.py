"""Measure a network, see the cost first, look up the measures, see how well the network does."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from .. import measures as catalogue
from ..engine.data_pass import LossAndAccuracy
from ..engine.preflight import Preflight, forecast
from ..engine.weight_space.products import SMALL
from ..engine.workspace import Workspace
from ..ground.need import is_number, or_none
from ..measures.asked import MEASURES, Applied, Asked
from ..measures.registry import Measured
from ..measures.setup import AllShared, Setup
from ..measures.setup import Loss as Loss
from ..measures.verb import measuring, verb
from ..model.arguments import ArgumentCheck
from ..model.batches import num_samples, total_samples
from ..records.measurements import Cost, Measurement, Report

if TYPE_CHECKING:
    from typing_extensions import Unpack


BUDGET = 20.0  # forward-backwards for measures that were not named
BUDGET_CHECK = ArgumentCheck(
    or_none(lambda value: is_number(value) and value > 0),
    "a positive number of forward-backwards, or None",
)
SAMPLES = 3  # on which two arithmetics are compared, with the same random numbers


@verb(measures=MEASURES, budget=BUDGET_CHECK)
def measure(
    setup: Setup,
    model: nn.Module,
    data: Iterable[Any],
    *,
    measures: str | Sequence[str] | None = None,
    budget: float | None = None,
    **shared: Unpack[AllShared],
) -> Report:
    """Measure how flat the loss of `model` on `data` is. The model is left exactly as it was.

    Args:
        model: any module in eval mode; its trainable parameters are measured.
        data: a loader of (x, y) batches or of dicts with labels, or one pair of tensors (x, y).
        loss: "cross_entropy", "mse", "bce", a torch loss module, or a function
            (outputs, targets) -> one loss per sample.
        measures: names or patterns such as "relative.*"; None takes the defaults that apply to the
            network.
        budget: how many forward-backwards over the data the call may take; what does not fit is
            left out, and named with its price. None: 20 for the default measures of a network with
            more than 20,000 weights, and no limit for measures that you name; nor has math.inf.
        layers: module paths or patterns to restrict the per-layer measures to; "head" for the head.
        head: the path of the last linear layer, if it is not found automatically.
        forward: (model, batch) -> (outputs, targets), for batches of another form; a third value
            is a mask of the targets that count.
        method: "auto" takes the exact value where that is cheap and certified, and otherwise the
            cheapest estimate; or "exact", "output_probes", "sample_probes", "split", "hutchinson",
            "hutch++".
        products: how the Hessian is multiplied: "reverse" (a second backward), "forward" (a forward
            derivative of the gradient), "difference" (differences of gradients: half the memory and
            any kernel, with an error that is stated), or "auto", the first that the model supports.
        rtol: estimates are refined until their interval is this narrow, relative to the value.
        confidence: the probability with which the interval covers the true value.
        max_passes: how many probes an estimate may use; each is one pass over the data.
        options: for single measures, such as {"rho": 0.1}; their cards name them. See `Options`.
        memory: bytes that a chunk of samples may use, with vectors as large as the weights where a
            measure holds some; None: 640 MiB, or half the free GPU memory, for samples alone.
        arithmetic: "full" is the model's own precision; "tf32" and "bf16" are faster on a GPU. What
            they cost in accuracy is measured on a few samples and is part of the interval.
        seed: for all random directions and signs.
        distributed: under torch.distributed, measure the data of all processes together; every
            process must call this. False measures in this process alone.
        progress: called with (samples done, samples in all or None, what is being done); the count
            starts again with every pass over the data.

    >>> import torch, spiritlevel as sl
    >>> net = nn.Linear(3, 1, bias=False).double()
    >>> x, y = torch.eye(3).double(), torch.zeros(3, 1).double()
    >>> report = sl.measure(net, (x, y), loss="mse", measures="curvature.trace")
    >>> round(report["curvature.trace"].value, 12)        # 2·mean ‖x‖²
    2.0
    """
    return measured(setup, model, data, measures=measures, budget=budget)


@measuring()
def measured(
    setup: Setup,
    model: nn.Module,
    data: Iterable[Any],
    *,
    measures: str | Sequence[str] | None,
    also: Iterable[str] = (),
    without: Collection[str] = (),
    budget: float | None = math.inf,
) -> Report:
    """As `measure`, with further measures where the network has what they require."""
    asked = Asked.read(measures, also).without(without)
    workspace = setup.workspace(model, data)
    applied = asked.of(workspace)
    with workspace.surface.preserved():
        if budget is None:
            budget = usual_budget(_size(workspace), measures, BUDGET)
        processes = workspace.surface.processes
        if math.isfinite(budget) or any(processes.gather(setup.progress is not None)):
            applied = applied.priced(budget)
            tell_plan(setup, applied)
        values, refused = applied.measured()
        if setup.arithmetic != "full":
            values = with_rounding(values, applied, model, setup)
    left_out = applied.left_out | refused
    dear = applied.prices.left_out if applied.prices else {}
    told = {name: why for name, why in left_out.items() if name in asked.matched | dear.keys()}
    return Report(
        {name: m.whole for name, m in values.items()},
        layers={name: m.layers for name, m in values.items() if m.layers},
        settings=workspace.settings()
        | {"subject": workspace.subject()}
        | ({"left_out": told} if told else {}),
        cost=workspace.cost,
    )


def usual_budget(size: int, measures: object, budget: float) -> float:
    """The budget where none was given: of defaults, and of a network of a `size` not small."""
    return budget if measures is None and size > SMALL else math.inf


def _size(workspace: Workspace) -> int:
    return sum(p.numel() for p in workspace.surface.parameters.values())


def tell_plan(setup: Setup, applied: Applied) -> None:
    """Tell what measuring will cost, before it starts."""
    if applied.prices is None:
        return
    surface, words = applied.workspace.surface, applied.prices.in_words()
    with surface.processes.together():
        if setup.progress is not None:
            setup.progress(0, total_samples(surface.data), f"planned: {words}")


@verb(measures=MEASURES, budget=BUDGET_CHECK)
def preflight(
    setup: Setup,
    model: nn.Module,
    data: Iterable[Any],
    *,
    measures: str | Sequence[str] | None = None,
    budget: float | None = None,
    **shared: Unpack[AllShared],
) -> Preflight:
    """What `measure` with these arguments will cost; runs only a few samples."""
    asked = Asked.read(measures)
    workspace = setup.workspace(model, data)
    applied = asked.of(workspace)
    with workspace.surface.preserved():
        if budget is None:
            budget = usual_budget(_size(workspace), measures, BUDGET)
        applied = applied.priced(budget)
        cards, further = applied.cards, applied.further
        once = {c.shared_work or c.name: further[c.name] for c in cards if c.name in further}
        needs = {card.name: card.needs for card in cards}
        whole = forecast(workspace, needs, further, sum(once.values(), Cost()))
        return dataclasses.replace(whole, prices=applied.prices)


def cards(pattern: str = "*") -> list[catalogue.Card]:
    """The cards of the measures that match a pattern.

    >>> [card.name for card in cards("neuron.*")]
    ['neuron.rho_max', 'neuron.rho_sum']
    """
    return [catalogue.get(name) for name in catalogue.names(pattern)]


def with_rounding(
    measured: dict[str, Measured], applied: Applied, model: nn.Module, setup: Setup
) -> dict[str, Measured]:
    """The measurements with what the faster arithmetic costs, where they were computed in it."""
    names = [card.name for card in applied.cards if card.needs.sweep and card.name in measured]
    if not names:
        return measured
    asked = Asked.read(names)
    surface = applied.workspace.surface
    few = [surface.first_samples(SAMPLES)]
    both = []
    rough = dataclasses.replace(setup, progress=None, rtol=0.5)
    for kind in ("full", setup.arithmetic):
        again = asked.of(dataclasses.replace(rough, arithmetic=kind).workspace(model, few))
        with again.workspace.surface.preserved():
            both.append(again.measured()[0])
        surface.cost += again.workspace.surface.cost
    return measured | {
        name: _compared(measured[name], both[0][name], both[1][name], setup.arithmetic)
        for name in names
    }


def _compared(measured: Measured, full: Measured, fast: Measured, arithmetic: str) -> Measured:
    """The measurements with the error that the arithmetic has on a few samples.

    `full` and `fast` are of the same samples. A layer that these do not reach has the error of the
    whole.
    """
    of_whole = _difference(full.whole, fast.whole)
    both = full.layers.keys() & fast.layers.keys()
    of_layer = {layer: _difference(full.layers[layer], fast.layers[layer]) for layer in both}
    return Measured(
        _marked(measured.whole, of_whole, arithmetic),
        {
            layer: _marked(m, of_layer.get(layer, of_whole), arithmetic)
            for layer, m in measured.layers.items()
        },
    )


def _difference(full: Measurement, fast: Measurement) -> float:
    """Relative to the value in full precision; 0 if both are 0."""
    if full.value == fast.value:
        return 0.0
    return abs(fast.value - full.value) / abs(full.value) if full.value else math.inf


def _marked(m: Measurement, error: float, arithmetic: str) -> Measurement:
    size = error * abs(m.value)
    stderr = math.hypot(m.stderr or 0.0, size)
    low, high = m.interval or (m.value, m.value)
    return dataclasses.replace(
        m,
        exact=False,
        stderr=stderr,
        interval=(low - 2 * size, high + 2 * size),
        settings={**m.settings, "arithmetic": arithmetic, "arithmetic_error": error},
        text="; ".join(
            part
            for part in (
                m.text.rstrip("."),
                f"in {arithmetic}, which changes it by {error:.1g} of its value on {SAMPLES} "
                "samples",
            )
            if part
        ),
    )


@dataclasses.dataclass(frozen=True)
class Performance:
    """Mean loss, and the share of targets that are predicted; None where there are no classes."""

    loss: float
    accuracy: float | None
    num_samples: int


@measuring()
def performance(setup: Setup, model: nn.Module, data: Iterable[Any]) -> Performance:
    """Run the network once over the data.

    >>> x, y = torch.eye(3), torch.tensor([0, 1, 0])
    >>> net = nn.Linear(3, 3, bias=False)
    >>> with torch.no_grad():
    ...     _ = net.weight.copy_(9 * torch.eye(3))
    >>> round(performance(Setup(), net, (x, y)).accuracy, 3)
    0.667
    """
    with setup.whole().opened(model, data) as workspace, torch.no_grad():
        surface = workspace.surface
        fit, count = (
            LossAndAccuracy(surface.loss, surface.device),
            torch.zeros((), dtype=torch.int64),
        )
        size = workspace.plan.footprint.chunk(workspace.memory, sweep=False)
        for where, batch in surface.chunks(size):
            fit.add(*surface.outputs(batch, where=where))
            count += num_samples(batch)
    fit.reduce(surface.processes)
    surface.processes.sum_(count)
    mean = math.nan if fit.mean_loss is None else fit.mean_loss
    return Performance(mean, fit.accuracy, int(count))
