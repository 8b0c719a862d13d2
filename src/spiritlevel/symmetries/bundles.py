"""Bundles of layers whose units must move together, and trying them in as few runs as possible."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence

from torch import Tensor

from .moves import NOBODY, ROOT, Group, Role, Site
from .ports import Port
from .tracing import Diverged, Trace


@dataclasses.dataclass(frozen=True)
class Bundle:
    """Layers that write the same units, or a run of `width` units of one layer."""

    ports: tuple[Port, ...]
    width: int
    start: int = 0

    @property
    def label(self) -> str:
        """The path of the first layer, and how many more there are."""
        first = _shown(self.ports[0])
        others = len(self.ports) - 1
        return first + (f" (with {others} more)" if others else "")

    def sites(self) -> list[Site]:
        """What must be multiplied to multiply the units."""
        return [site for port in self.ports for site in port.written(self.width, self.start)]


@dataclasses.dataclass
class Reading:
    """What a run showed about a bundle: the unit of each entry of its readers, or why it failed."""

    units: dict[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    attends: bool = False
    reason: str | None = None

    def note(self, port: Port, units: Tensor | None, reason: str) -> None:
        """Record the units that one call reads; None if its entries mix units."""
        if units is None:
            self.refuse(reason)
            return
        read_units = tuple(units.tolist())
        if self.units.setdefault(port.path, read_units) != read_units:
            self.refuse(f"{port.path!r} reads the units at different places in different calls")

    def refuse(self, reason: str) -> None:
        """Mark the bundle as failed; the first reason is kept."""
        self.reason = self.reason or reason


def bundles_of(trace: Trace, meetings: Iterable[frozenset[str]]) -> list[Bundle]:
    """One bundle for all called layers that meet, directly or through others."""
    called = list(dict.fromkeys(call.port.path for call in trace.calls))
    parent = {path: path for path in called}

    def root(path: str) -> str:
        while parent[path] != path:
            path = parent[path]
        return path

    for meeting in (*meetings, *_met_in_one_layer(trace)):
        first, *others = sorted(meeting)
        for other in others:
            if trace.ports[first].width == trace.ports[other].width:
                parent[root(other)] = root(first)
    members: dict[str, list[Port]] = {}
    for path in called:
        members.setdefault(root(path), []).append(trace.ports[path])
    return [Bundle(tuple(ports), ports[0].width) for ports in members.values()]


def _met_in_one_layer(trace: Trace) -> list[frozenset[str]]:
    """Layers that one layer reads in different calls must have the same units."""
    behind: dict[str, list[frozenset[str]]] = {}
    for call, layers in zip(trace.calls, trace.reach.behind, strict=True):
        behind.setdefault(call.port.path, []).append(layers)
    differing = (
        frozenset().union(*calls) - frozenset.intersection(*calls) for calls in behind.values()
    )
    return [layers for layers in differing if layers]


Attempt = Callable[[list[Bundle], dict[Bundle, Reading]], None]


def try_all(trace: Trace, bundles: list[Bundle], attempt: Attempt) -> dict[Bundle, Reading]:
    """Try bundles that share no reader in one run: what a reader sees then has one cause."""
    readings = {bundle: Reading(reason=_obstacle(trace, bundle)) for bundle in bundles}
    planned: list[tuple[list[Bundle], set[int]]] = []
    for bundle in bundles:
        if readings[bundle].reason is not None:
            continue
        calls = readers(trace, bundle)
        for chosen, taken in planned:
            ports = {port for other in chosen for port in other.ports}
            if taken.isdisjoint(calls) and ports.isdisjoint(bundle.ports):
                chosen.append(bundle)
                taken.update(calls)
                break
        else:
            planned.append(([bundle], set(calls)))
    for active, _ in planned:
        try:
            attempt(active, readings)
        except Diverged as diverged:
            for bundle in active:
                readings[bundle].refuse(f"with other values of {bundle.label} {diverged}")
        for bundle in active:
            if not any(set(units) - {NOBODY} for units in readings[bundle].units.values()):
                readings[bundle].refuse(f"no layer of a known kind reads {bundle.label}")
    return readings


def readers(trace: Trace, bundle: Bundle) -> list[int]:
    """The calls that read from the bundle."""
    paths = {port.path for port in bundle.ports}
    return [i for i, behind in enumerate(trace.reach.behind) if behind & paths]


def cause_of(trace: Trace, call: int, active: list[Bundle]) -> Bundle | None:
    """The bundle among those tried together that a call reads from."""
    behind = trace.reach.behind[call]
    return next((b for b in active if any(port.path in behind for port in b.ports)), None)


def written_by(port: Port, active: list[Bundle]) -> Bundle | None:
    """The bundle among those tried together whose units the port writes."""
    return next((bundle for bundle in active if port in bundle.ports), None)


def _obstacle(trace: Trace, bundle: Bundle) -> str | None:
    """Why a bundle cannot be moved, as far as that is known without a run."""
    for port in bundle.ports:
        if port.path in trace.reach.behind_outputs:
            return f"{_shown(port)} gives the outputs"
    calls = readers(trace, bundle)
    if not calls:
        return f"no layer of a known kind reads {bundle.label}"
    reading = {trace.calls[i].port for i in calls}
    for i, call in enumerate(trace.calls):
        if call.port in reading and i not in calls:
            return f"{_shown(call.port)} reads {bundle.label} in one call and not in another"
    return None


def _shown(port: Port) -> str:
    return repr(port.path or ROOT)


def even(units: Tensor, width: int) -> bool:
    """Whether every unit is read equally often; one read less often was inactive in this run."""
    counts = units[units != NOBODY].bincount(minlength=width)
    return bool((counts == counts[0]).all())


def as_group(bundle: Bundle, sites: Sequence[Site]) -> Group:
    """The group of a bundle; tensors that α does not change are named last."""
    return Group(bundle.width, tuple(sorted(sites, key=lambda site: list(Role).index(site.role))))
