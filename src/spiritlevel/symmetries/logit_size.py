"""Moves that change nothing but the size of the logits.

The temperature multiplies the head by one factor. The other move multiplies all weights by α: after
the first layer everything is multiplied by α, after the second by α², and so on. Unscaled biases
would change the proportions of the outputs. So whatever is added is multiplied by the power of α of
what it is added to. The powers are found by running the network, since only that shows what sums,
pooling and activations between the layers do.
"""

from __future__ import annotations

import dataclasses
import math

from torch import Tensor, nn

from ..ground.errors import SpiritlevelError, brief
from .moves import ROOT, Group, Move, Role, Site
from .ports import Port
from .precision import deviation, multiple
from .tracing import Call, Diverged, Trace

_FACTOR = 2.0  # multiplies without rounding


def temperature_move(model: nn.Module, head: str) -> Move:
    """Multiply weight and bias of the head, named by its path, by one factor."""
    head = "" if head == ROOT else head
    try:
        module = model.get_submodule(head)
    except AttributeError as error:
        raise SpiritlevelError(
            f"The 'head' argument must be the path of a module. Got {brief(head)}, which the model "
            f"does not have. Its last one is {list(dict(model.named_modules()))[-1]!r}."
        ) from error
    sites = [
        Site(head, name, 0, (0,) * len(parameter), Role.TIMES)
        for name, parameter in module.named_parameters(recurse=False)
        if parameter.dim() > 0
    ]
    if not sites:
        raise SpiritlevelError(
            f"The 'head' argument must be the path of a layer with weights. Got {brief(head)}, a "
            f"{type(module).__name__} without any of its own. Name the layer that gives the logits."
        )
    return Move("logit_temperature", (Group(1, tuple(sites)),))


class _NotOnePower(Diverged):
    """A layer reads something that no power of the factor multiplies."""


def weight_scale_move(model: nn.Module, trace: Trace, tolerance: float) -> Move | str:
    """Multiply all weights by α and what is added by the power it needs; or why that is impossible.

    The result still has to be verified: the trace does not see what follows the last layer.
    """
    read: dict[Port, float] = {}
    written = 0.0

    def check(index: int, inputs: list[Tensor]) -> None:
        nonlocal written
        call = trace.calls[index]
        power = _power_read(call, inputs, tolerance)
        if read.setdefault(call.port, power) != power and _shifts(call.port):
            raise _NotOnePower(f"{call.port.path!r} adds one bias in calls at different depths")
        written = power + _is_weighted(call.port)

    def change(port: Port, values: Tensor) -> Tensor:
        return values * _FACTOR**written  # the call that `check` has just seen

    try:
        trace.replay(change, check)
    except _NotOnePower as uneven:
        return str(uneven)
    except Diverged as diverged:
        return f"with larger values in its layers the network does not run: {diverged}"
    sites = [site for port, power in read.items() for site in _sites(port, power)]
    if not any(site.role is Role.TIMES for site in sites):
        return "there is no linear or convolutional layer"
    once: dict[int, Site] = {}
    for site in sites:  # layers that share a tensor share its factor
        first = once.setdefault(id(site.of(model)), site)
        if first.power != site.power:
            return f"{first.name!r} and {site.name!r} are one tensor at different depths"
    return Move("weight_scale", (Group(1, tuple(once.values())),))


def power_of(ratio: float, factor: float, tolerance: float) -> float:
    """The power of the factor that gives the ratio; a whole number if only rounding is missing."""
    power = math.log(ratio) / math.log(factor)
    return float(round(power)) if abs(power - round(power)) <= tolerance else power


def _power_read(call: Call, inputs: list[Tensor], tolerance: float) -> float:
    """The power of the factor by which what a call reads has grown."""
    port = call.port
    if port.values:
        raise _NotOnePower(f"{port.path!r} is attention: its softmax follows the size of the keys")
    if port.num_inputs and not port.reads:
        raise _NotOnePower(f"{port.path!r} normalizes what it reads")
    power = 0.0
    for now, then in zip(inputs, call.inputs, strict=True):
        ratio = multiple(now, then)
        if not ratio > 0 or deviation(now, ratio * then) > tolerance:
            raise _NotOnePower(f"no power of α multiplies all that {port.path!r} reads")
        power = power_of(ratio, _FACTOR, tolerance)
    return power


def _is_weighted(port: Port) -> bool:
    """Whether the layer multiplies by its weight; a BatchNorm's is left as it is."""
    return not any(slot.role is Role.VARIANCE for slot in port.reads)


def _shifts(port: Port) -> list[Site]:
    """The biases and running means of a layer: what it adds or subtracts."""
    slots = [
        *(slot for slot in port.writes if slot.tensor == "bias"),
        *(slot for slot in port.reads if slot.role is Role.MEAN),
    ]
    sites = (port.site(slot, (0,) * port.width) for slot in slots)
    return [dataclasses.replace(site, role=Role.SHIFT) for site in sites]


def _sites(port: Port, read: float) -> list[Site]:
    weighted = _is_weighted(port)
    weights = [slot for slot in port.writes if slot.tensor == "weight"] if weighted else []
    shifts = [dataclasses.replace(site, power=read + weighted) for site in _shifts(port)]
    return [*(port.site(slot, (0,) * port.width) for slot in weights), *shifts]
