"""What a faster arithmetic costs: the same measures of a few samples, both ways."""

from __future__ import annotations

import dataclasses
import math

from torch import nn

from ..records import Measurement
from .asked import Applied, Asked
from .registry import Measured
from .setup import Setup

SAMPLES = 3  # on which both are compared, with the same random numbers


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
