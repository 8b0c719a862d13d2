"""Find the units that can be multiplied by a factor that the next layers undo."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn

from .bundles import Bundle, Reading, as_group, bundles_of, cause_of, even, try_all, written_by
from .moves import NOBODY, Group, Role, random_order
from .ports import Port
from .tracing import Trace, along, by_entry

# Query, key and value, or a gate and what it gates, are often one layer. Its values are then the
# last third of its units, what is gated one of its halves.
_PARTS = ((3, 2), (2, 1), (2, 0))
_LOW, _SPREAD = 5.0, 20.0  # factors far from 1 cannot be taken for rounding


def find_scalings(
    trace: Trace, tolerance: float, generator: torch.Generator
) -> tuple[dict[str, list[Group]], list[str]]:
    """The groups that can be rescaled, by move, and why others cannot."""
    groups: dict[str, list[Group]] = {
        "neuron_rescale": [],
        "attention_rescale": [
            _values_group(port)
            for port in dict.fromkeys(call.port for call in trace.calls)
            if port.values
        ],
        "batchnorm_absorb": [],
    }

    def attempt(active: list[Bundle], readings: dict[Bundle, Reading]) -> None:
        _attempt(trace, active, readings, tolerance, generator)

    def keep(readings: dict[Bundle, Reading]) -> dict[Bundle, str]:
        for bundle, reading in readings.items():
            if reading.reason is None:
                name, group = _group(trace, bundle, reading)
                groups[name].append(group)
        return {b: reading.reason for b, reading in readings.items() if reading.reason is not None}

    failed = keep(try_all(trace, bundles_of(trace, trace.reach.sums), attempt))
    whole = [bundle for bundle in failed if len(bundle.ports) == 1]
    for parts, index in _PARTS:
        width = {bundle: bundle.width // parts for bundle in whole if not bundle.width % parts}
        cut = {Bundle(b.ports, each, start=index * each): b for b, each in width.items()}
        still = keep(try_all(trace, list(cut), attempt))
        done = {bundle for part, bundle in cut.items() if part not in still}
        whole = [bundle for bundle in whole if bundle not in done]
        failed = {bundle: reason for bundle, reason in failed.items() if bundle not in done}
    return groups, list(failed.values())


def _attempt(
    trace: Trace,
    active: list[Bundle],
    readings: dict[Bundle, Reading],
    tolerance: float,
    generator: torch.Generator,
) -> None:
    """Multiply every unit by a factor of its own and look for it in what is read."""
    ranks = {bundle: random_order(bundle.width, generator) for bundle in active}

    def change(port: Port, values: Tensor) -> Tensor:
        bundle = written_by(port, active)
        if bundle is None:
            return values
        scale = torch.ones(port.width, dtype=torch.float64)
        scale[bundle.start : bundle.start + bundle.width] = _factors(ranks[bundle], bundle.width)
        return values * along(port.axis, scale, values)

    def check(index: int, inputs: list[Tensor]) -> None:
        bundle = cause_of(trace, index, active)
        if bundle is None:
            return
        call = trace.calls[index]
        before = f"what {call.port.path!r} reads is not proportional to {bundle.label}"
        for now, then in zip(inputs, call.inputs, strict=True):
            units = _units(now, then, call.port.axis, ranks[bundle], tolerance)
            readings[bundle].note(call.port, units, before)
        readings[bundle].attends |= trace.reach.attends[index]
        if not call.port.reads:
            readings[bundle].refuse(f"{call.port.path!r} normalizes what it reads")

    for bundle in active:
        for port in bundle.ports:
            if not port.writes:
                readings[bundle].refuse(f"{port.path!r} has no weights to multiply")
    trace.replay(change, check)


def _units(now: Tensor, then: Tensor, axis: int, ranks: Tensor, tolerance: float) -> Tensor | None:
    """The unit each entry belongs to, by its factor; None if an entry is no unit's multiple."""
    now, then = (by_entry(axis, x).double().cpu() for x in (now, then))
    strongest = then.abs().argmax(1, keepdim=True)
    base = then.gather(1, strongest)
    ratio = torch.where(base == 0, 1.0, now.gather(1, strongest) / base)
    if bool(((now - ratio * then).abs() > tolerance * now.abs().amax(1, keepdim=True)).any()):
        return None
    ratio, width = ratio.flatten(), len(ranks)
    rank = ((ratio - _LOW) / _SPREAD * width).floor().clamp(0, width - 1).long()
    units = torch.where((ratio - 1).abs() <= tolerance, NOBODY, ranks.argsort()[rank])
    expected = torch.where(units == NOBODY, 1.0, _factors(rank, width))
    all_known = bool(((ratio - expected).abs() <= tolerance * ratio.abs()).all())
    return units if all_known and even(units, width) else None


def _factors(ranks: Tensor, width: int) -> Tensor:
    """Evenly spaced, so that neighbours stay apart however many units there are."""
    return _LOW + _SPREAD * (ranks + 0.5) / width


def _group(trace: Trace, bundle: Bundle, reading: Reading) -> tuple[str, Group]:
    sites = bundle.sites()
    for path, units in reading.units.items():
        port = trace.ports[path]
        sites += [port.site(slot, units) for slot in port.reads if set(units) != {NOBODY}]
    group = as_group(bundle, sites)
    if reading.attends:
        return "attention_rescale", group
    if not group.modules(Role.OVER):
        return "batchnorm_absorb", group
    return "neuron_rescale", group


def _values_group(port: Port) -> Group:
    """Attention inside one module: a fused projection holds query, key and value in this order."""
    width = port.width
    last = {"in_proj_weight": 2 * width, "in_proj_bias": 2 * width}  # before these come q and k
    sites = [
        port.site(slot, [NOBODY] * last.get(slot.tensor, 0) + list(range(width)))
        for slot in port.values
    ]
    return Group(width, tuple(sites))


def folded(absorbed: Group, model: nn.Module) -> Group | None:
    """The same channels before a BatchNorm, undone by its scale and shift; None without a scale."""
    sites = [site for site in absorbed.sites if site.role is Role.TIMES]
    for follower in (site for site in absorbed.sites if site.role is Role.VARIANCE):
        norm = model.get_submodule(follower.module)
        if norm._parameters.get("weight") is None:
            return None
        if norm._parameters.get("bias") is not None:  # it needs the scale as it was: it comes first
            sites.append(dataclasses.replace(follower, tensor="bias", role=Role.OFFSET))
        sites.append(dataclasses.replace(follower, tensor="weight", role=Role.OVER))
    return Group(absorbed.width, tuple(sites))
