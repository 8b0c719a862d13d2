"""Find the units of a network that can be renumbered."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from .bundles import Bundle, Reading, as_group, bundles_of, cause_of, even, try_all, written_by
from .moves import NOBODY, Group, Role, Site, random_order, reordered
from .ports import Port
from .tracing import Trace, along, by_entry


def find_permutations(
    trace: Trace, tolerance: float, generator: torch.Generator
) -> tuple[list[Group], list[str]]:
    """The groups whose units can be renumbered, and why others cannot."""
    meetings = trace.reach.sums | trace.reach.products
    for call, behind in zip(trace.calls, trace.reach.behind, strict=True):
        if call.port.carries:  # what goes through a norm keeps its number
            meetings.add(behind | {call.port.path})

    def attempt(active: list[Bundle], readings: dict[Bundle, Reading]) -> None:
        _locate(trace, active, readings, tolerance)
        _reorder(trace, active, readings, tolerance, generator)

    groups, reasons = [], []
    for bundle, reading in try_all(trace, bundles_of(trace, meetings), attempt).items():
        if bundle.width == 1:
            reasons.append(f"{bundle.label} has a single unit")
        elif reading.reason is not None:
            reasons.append(reading.reason)
        else:
            groups.append(_group(trace, bundle, reading))
    return groups, reasons


def _locate(
    trace: Trace, active: list[Bundle], readings: dict[Bundle, Reading], tolerance: float
) -> None:
    """Learn where each unit is read: change those with a 1 at some binary digit of their number."""
    digits = max(bundle.width for bundle in active).bit_length()
    # for each call and input, the number whose digits were seen to respond, entry by entry
    seen = [
        [torch.zeros(x.shape[call.port.axis], dtype=torch.long) for x in call.inputs]
        for call in trace.calls
    ]
    for digit in range(digits):

        def change(port: Port, values: Tensor, digit: int = digit) -> Tensor:
            if not any(port in bundle.ports for bundle in active):
                return values
            numbers = torch.arange(1, port.width + 1)  # from 1: every unit is touched once
            touched = along(port.axis, (numbers >> digit & 1).double(), values) == 1
            # towards 0, to avoid saturation; by sign, or a normalization would undo it
            nearer = torch.where(values > 0, 0.7 * values, 0.4 * values)
            return torch.where(touched, nearer, values)

        def check(index: int, inputs: list[Tensor], digit: int = digit) -> None:
            call = trace.calls[index]
            for now, then, number in zip(inputs, call.inputs, seen[index], strict=True):
                size = tolerance * by_entry(call.port.axis, then).abs().amax(1)
                differs = by_entry(call.port.axis, now - then).abs().amax(1) > size
                number += differs.long().cpu() << digit

        trace.replay(change, check)
    for index, call in enumerate(trace.calls):
        bundle = cause_of(trace, index, active)
        if bundle is not None:
            reason = f"what {call.port.path!r} reads mixes the units of {bundle.label}"
            for number in seen[index]:
                units = number - 1
                fits = bool((units < bundle.width).all()) and even(units, bundle.width)
                readings[bundle].note(call.port, units if fits else None, reason)
    for bundle in active:
        for port in bundle.ports:
            if _in_fixed_groups(port):
                readings[bundle].refuse(f"{port.path!r} writes the units in fixed groups")
            if port.carries and port.path not in readings[bundle].units:
                readings[bundle].refuse(f"{port.path!r} reads what no layer wrote")


def _reorder(
    trace: Trace,
    active: list[Bundle],
    readings: dict[Bundle, Reading],
    tolerance: float,
    generator: torch.Generator,
) -> None:
    """Renumber the units and see whether what is read is renumbered likewise."""
    orders = {bundle: random_order(bundle.width, generator) for bundle in active}

    def change(port: Port, values: Tensor) -> Tensor:
        bundle = written_by(port, active)
        if bundle is None:
            return values
        return values.index_select(port.axis, orders[bundle].to(values.device))

    def check(index: int, inputs: list[Tensor]) -> None:
        bundle, call = cause_of(trace, index, active), trace.calls[index]
        if bundle is None or readings[bundle].reason is not None:
            return
        units = torch.tensor(readings[bundle].units[call.port.path])
        if call.port.carries and not torch.equal(units, torch.arange(call.port.width)):
            readings[bundle].refuse(f"{call.port.path!r} numbers the units differently")
        elif _in_fixed_groups(call.port):
            readings[bundle].refuse(f"{call.port.path!r} reads the units in fixed groups")
        elif not call.port.carries and not call.port.reads:
            readings[bundle].refuse(f"{call.port.path!r} normalizes the units in fixed groups")
        else:
            where = reordered(units, orders[bundle])
            for now, then in zip(inputs, call.inputs, strict=True):
                expected = then.index_select(call.port.axis, where.to(then.device))
                if bool((now - expected).abs().max() > tolerance * then.abs().max()):
                    readings[bundle].refuse(
                        f"between {bundle.label} and {call.port.path!r} the units are not alike"
                    )

    trace.replay(change, check)


def _in_fixed_groups(port: Port) -> bool:
    """A grouped convolution, unless each channel is a group."""
    return not port.carries and any(slot.groups > 1 for slot in port.reads)


def _group(trace: Trace, bundle: Bundle, reading: Reading) -> Group:
    sites: list[Site] = []
    for port in bundle.ports:
        role = Role.ALONG if port.carries else Role.TIMES
        sites += [dataclasses.replace(site, role=role) for site in port.written(bundle.width, 0)]
    for path, units in reading.units.items():
        port = trace.ports[path]
        role = Role.ALONG if port.carries else Role.OVER
        # a depthwise weight has one row for each unit, which is renumbered as what it writes
        slots = [slot for slot in port.reads if not (port.carries and slot.groups > 1)]
        if set(units) != {NOBODY}:
            sites += [dataclasses.replace(port.site(slot, units), role=role) for slot in slots]
    return as_group(bundle, sites)
