"""The public verbs: measure a network, see the cost first, look up the measures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from torch import nn

from . import measures as catalogue
from .engine.preflight import Preflight, forecast
from .measures.asked import MEASURES, Asked
from .measures.rounding import with_rounding
from .measures.setup import AllShared, Setup
from .measures.setup import Loss as Loss
from .measures.verb import measuring, verb
from .records import Cost, Report

if TYPE_CHECKING:
    from typing_extensions import Unpack


@verb(measures=MEASURES)
def measure(
    setup: Setup,
    model: nn.Module,
    data: Iterable[Any],
    *,
    measures: str | Sequence[str] | None = None,
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
        layers: module paths or patterns to restrict the per-layer measures to; "head" for the head.
        head: the path of the last linear layer, if it is not found automatically.
        forward: (model, batch) -> (outputs, targets), for batches of another form; a third value
            is a mask of the targets that count.
        method: "auto" takes the exact value where that is cheap and certified, and otherwise the
            cheapest estimate; or "exact", "output_probes", "sample_probes", "split", "hutchinson",
            "hutch++".
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
    return measured(setup, model, data, measures=measures)


@measuring()
def measured(
    setup: Setup,
    model: nn.Module,
    data: Iterable[Any],
    *,
    measures: str | Sequence[str] | None,
    also: Iterable[str] = (),
) -> Report:
    """As `measure`, with further measures where the network has what they require."""
    asked = Asked.read(measures, also)
    workspace = setup.workspace(model, data)
    applied = asked.of(workspace)
    with workspace.surface.preserved():
        values, refused = applied.measured()
        if setup.arithmetic != "full":
            values = with_rounding(values, applied, model, setup)
    left_out = applied.left_out | refused
    told = {name: why for name, why in left_out.items() if name in asked.matched}
    return Report(
        {name: m.whole for name, m in values.items()},
        layers={name: m.layers for name, m in values.items() if m.layers},
        settings=workspace.settings()
        | {"subject": workspace.subject()}
        | ({"left_out": told} if told else {}),
        cost=workspace.cost,
    )


@verb(measures=MEASURES)
def preflight(
    setup: Setup,
    model: nn.Module,
    data: Iterable[Any],
    *,
    measures: str | Sequence[str] | None = None,
    **shared: Unpack[AllShared],
) -> Preflight:
    """What `measure` with these arguments will cost at least; runs only a few samples."""
    asked = Asked.read(measures)
    workspace = setup.workspace(model, data)
    cards = asked.of(workspace).cards
    with workspace.surface.preserved():
        further = {c.name: c.further_cost(workspace) for c in cards if c.further_cost}
        once = {c.shared_work or c.name: further[c.name] for c in cards if c.name in further}
        needs = {card.name: card.needs for card in cards}
        return forecast(workspace, needs, further, sum(once.values(), Cost()))


def cards(pattern: str = "*") -> list[catalogue.Card]:
    """The cards of the measures that match a pattern.

    >>> [card.name for card in cards("neuron.*")]
    ['neuron.rho_max', 'neuron.rho_sum']
    """
    return [catalogue.get(name) for name in catalogue.names(pattern)]
