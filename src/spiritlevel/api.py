"""The public verbs: measure a network, see the cost first, look up the measures."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from torch import Tensor, nn

from . import measures as catalogue
from .engine.data_pass import Needs
from .engine.forecast import forecast
from .engine.head.head_layer import choose_head
from .engine.options import Options, as_options
from .engine.plan import make_head_plan
from .engine.precision import Method, Precision
from .engine.preflight import Preflight
from .engine.workspace import Workspace
from .errors import NotApplicable, SpiritlevelError
from .measures import rounding
from .measures.requirements import head as requires_head
from .model.arithmetic import Arithmetic, full_precision
from .model.batches import Forward
from .model.calls import measuring
from .model.distributed import Processes
from .model.surface import Surface
from .records import Progress, Report

Loss: TypeAlias = str | nn.Module | Callable[[Tensor, Tensor], Tensor]
PRECISION = tuple(field.name for field in dataclasses.fields(Precision))


@measuring
def measure(
    model: nn.Module,
    data: Iterable[Any],
    *,
    loss: Loss = "cross_entropy",
    measures: str | Sequence[str] | None = None,
    layers: str | Sequence[str] | None = None,
    head: str | None = None,
    forward: Forward | None = None,
    method: Method = "auto",
    rtol: float = 0.05,
    confidence: float = 0.95,
    max_passes: int = 100,
    options: Options | Mapping[str, Any] | None = None,
    memory: int | None = None,
    arithmetic: Arithmetic = "full",
    seed: int = 0,
    distributed: bool = True,
    progress: Progress | None = None,
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
    return measure_also(
        model,
        data,
        also=(),
        loss=loss,
        measures=measures,
        layers=layers,
        head=head,
        forward=forward,
        method=method,
        rtol=rtol,
        confidence=confidence,
        max_passes=max_passes,
        options=options,
        memory=memory,
        arithmetic=arithmetic,
        seed=seed,
        distributed=distributed,
        progress=progress,
    )


@measuring
def measure_also(
    model: nn.Module, data: Iterable[Any], *, also: Iterable[str], **arguments: Any
) -> Report:
    """As `measure`, with further measures where the network has what they require."""
    asked = _prepare(model, data, also=also, **_parsed(arguments))
    workspace = asked.workspace
    with workspace.surface.preserved():
        measured, refused = _measured(asked)
        if workspace.surface.arithmetic != "full":
            measured = _with_rounding(measured, asked, model, arguments)
    left_out = asked.refusals | refused
    told = {name: why for name, why in left_out.items() if name in asked.matched}
    return Report(
        {name: m.whole for name, m in measured.items()},
        layers={name: m.layers for name, m in measured.items() if m.layers},
        settings=workspace.settings()
        | {"subject": workspace.subject()}
        | ({"left_out": told} if told else {}),
        cost=workspace.cost,
    )


def _measured(asked: _Asked) -> tuple[dict[str, catalogue.Measured], dict[str, str]]:
    """The measurements, and why some of those that only a pattern matched are left out."""
    workspace, measured, refused = asked.workspace, {}, {}
    workspace.start()
    for card in asked.cards:
        try:
            with workspace.surface.processes.together():
                measured[card.name] = _completed(card, card.function(workspace), workspace)
        except NotApplicable as error:
            if card.name in asked.named or len(asked.cards) == 1:
                raise
            refused[card.name] = str(error)
    workspace.cache.clear()  # it refers to the workspace: the cycle would keep both in memory
    return measured, refused


def _with_rounding(
    measured: dict[str, catalogue.Measured],
    asked: _Asked,
    model: nn.Module,
    arguments: dict[str, Any],
) -> dict[str, catalogue.Measured]:
    """The measurements with what the faster arithmetic costs, where they were computed in it."""
    names = [card.name for card in asked.cards if card.needs.sweep and card.name in measured]
    if not names:
        return measured
    surface = asked.workspace.surface
    few = [surface.first_samples(rounding.SAMPLES)]
    both = []
    for kind in ("full", surface.arithmetic):
        asks = arguments | {"measures": names, "rtol": 0.5, "arithmetic": kind, "progress": None}
        again = _prepare(model, few, **_parsed(asks))
        with again.workspace.surface.preserved():
            both.append(_measured(again)[0])
        surface.cost += again.workspace.surface.cost
    return measured | {
        name: rounding.with_rounding(
            measured[name], both[0][name], both[1][name], surface.arithmetic
        )
        for name in names
    }


@measuring
def preflight(
    model: nn.Module,
    data: Iterable[Any],
    *,
    loss: Loss = "cross_entropy",
    measures: str | Sequence[str] | None = None,
    layers: str | Sequence[str] | None = None,
    head: str | None = None,
    forward: Forward | None = None,
    method: Method = "auto",
    rtol: float = 0.05,
    confidence: float = 0.95,
    max_passes: int = 100,
    options: Options | Mapping[str, Any] | None = None,
    memory: int | None = None,
    arithmetic: Arithmetic = "full",
    seed: int = 0,
    distributed: bool = True,
    progress: Progress | None = None,
) -> Preflight:
    """What `measure` with these arguments will cost at least; runs only a few samples."""
    arguments = {
        "loss": loss,
        "measures": measures,
        "layers": layers,
        "head": head,
        "forward": forward,
        "method": method,
        "rtol": rtol,
        "confidence": confidence,
        "max_passes": max_passes,
        "options": options,
        "memory": memory,
        "arithmetic": arithmetic,
        "seed": seed,
        "distributed": distributed,
        "progress": progress,
    }
    asked = _prepare(model, data, **_parsed(arguments))
    workspace = asked.workspace
    with workspace.surface.preserved():
        further = {c.name: c.further_cost(workspace) for c in asked.cards if c.further_cost}
        return forecast(workspace, {card.name: card.needs for card in asked.cards}, further)


def cards(pattern: str = "*") -> list[catalogue.Card]:
    """The cards of the measures that match a pattern.

    >>> [card.name for card in cards("neuron.*")]
    ['neuron.rho_max', 'neuron.rho_sum']
    """
    return [catalogue.get(name) for name in catalogue.names(pattern)]


def _needs(cards: Iterable[catalogue.Card]) -> Needs:
    total = Needs()
    for card in cards:
        total = total | card.needs
    return total


def open_workspace(
    model: nn.Module,
    data: Iterable[Any],
    *,
    loss: Any = "cross_entropy",
    layers: str | Sequence[str] | None = None,
    head: str | None = None,
    forward: Forward | None = None,
    precision: Precision | None = None,
    options: Options | None = None,
    memory: int | None = None,
    arithmetic: Arithmetic = "full",
    seed: int = 0,
    distributed: bool = True,
    progress: Progress | None = None,
) -> Workspace:
    """The workspace every verb starts from: over the chosen layers, with checked arguments."""
    if memory is not None and memory <= 0:
        raise SpiritlevelError(
            f"The 'memory' argument must be a positive number of bytes. Got {memory!r}. "
            "Leave it out for 640 MiB, or half the free memory of a GPU."
        )
    common = {
        "loss": loss,
        "forward": forward,
        "progress": progress,
        "processes": Processes(join=distributed),
        "arithmetic": arithmetic,
    }
    surface = Surface(model, data, **common)
    surface.check_model()
    if layers == "head" and "head" not in surface.layers():
        with surface.preserved(), full_precision():
            layers = choose_head(make_head_plan(surface).heads, head).layer
    if layers is not None:
        surface = Surface(model, data, layers=layers, **common)
    return Workspace(
        surface, head=head, memory=memory, seed=seed, precision=precision, options=options
    )


def open_measurement(model: nn.Module, data: Iterable[Any], **arguments: Any) -> Workspace:
    """As `open_workspace`, from the arguments of `measure`."""
    return open_workspace(model, data, **_parsed(arguments))


def _parsed(arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments of `measure` as `open_workspace` takes them."""
    asked = {key: value for key, value in arguments.items() if key in PRECISION}
    rest = {key: value for key, value in arguments.items() if key not in PRECISION}
    precision, options = Precision(**asked), as_options(rest.get("options"))
    return rest | {"precision": precision, "options": options}


@dataclasses.dataclass(frozen=True)
class _Asked:
    """What a call asks for, as far as it applies to the network."""

    workspace: Workspace
    cards: list[catalogue.Card]  # that apply
    named: set[str]  # those that were asked for by name
    matched: set[str]  # those that a name or a pattern of the user matched
    refusals: dict[str, str]  # why the others do not apply


def _prepare(
    model: nn.Module,
    data: Iterable[Any],
    *,
    measures: str | Sequence[str] | None = None,
    also: Iterable[str] = (),
    **arguments: Any,
) -> _Asked:
    cards, named = _choose(measures)
    asked_for = {card.name for card in cards}
    cards = cards + [catalogue.get(name) for name in also if name not in asked_for]
    workspace = open_workspace(model, data, **arguments)
    workspace.want(_needs(cards))
    with workspace.surface.preserved():
        if workspace.head_name is not None and any(
            requires_head in card.requires for card in cards
        ):
            _ = workspace.head  # a layer that was named is refused, not left out
        refusals = {card.name: error for card in cards if (error := _refusal(card, workspace))}
    chosen = [card for card in cards if card.name not in refusals]
    if wrong := [name for name in refusals if name in named or not chosen]:
        raise refusals[wrong[0]]
    workspace.want(_needs(chosen))
    workspace.asked = frozenset(card.name for card in chosen)
    # those of the default set, and those of `also`, come and go with the network
    matched = set[str]() if measures is None else asked_for
    reasons = {name: str(error) for name, error in refusals.items()}
    return _Asked(workspace, chosen, named, matched, reasons)


def _refusal(card: catalogue.Card, workspace: Workspace) -> SpiritlevelError | None:
    try:
        with workspace.surface.processes.together():  # all leave out the same measures
            card.refuse(workspace)
    except SpiritlevelError as error:
        return error
    return None


def _completed(
    card: catalogue.Card, measured: catalogue.Measured, workspace: Workspace
) -> catalogue.Measured:
    """The measurements, with the options that were read and the weights that are in them.

    What a model rounds to half precision itself is not exact, however it was computed.
    """
    settings = workspace.options.chosen(card.options)
    measured = measured.recording(settings) if settings else measured
    for weights_of in (catalogue.measured_weights, catalogue.layer_weights):
        if weights_of not in card.requires:
            continue
        weights = list(weights_of(workspace, card.name).values())
        measured = measured.covering(weights, catalogue.left_out_weights(workspace, weights))
    rounded_to = workspace.surface.rounded_to
    return measured if rounded_to is None else measured.rounded(rounded_to)


def _choose(measures: str | Sequence[str] | None) -> tuple[list[catalogue.Card], set[str]]:
    """The cards, and which of them were asked for by their full name."""
    if measures is None:
        return [card for card in map(catalogue.get, catalogue.names()) if card.default], set()
    patterns = [measures] if isinstance(measures, str) else list(measures)
    if not patterns:
        raise SpiritlevelError(
            "The 'measures' argument must name at least one measure. Got an empty list. "
            "Leave it out for a sensible choice; see `spiritlevel list`."
        )
    matching = [name for pattern in patterns for name in catalogue.names(pattern)]
    return [catalogue.get(name) for name in dict.fromkeys(matching)], set(patterns)
