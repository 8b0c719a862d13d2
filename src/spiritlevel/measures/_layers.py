"""What the per-layer measures of weight matrices share."""

from __future__ import annotations

import dataclasses

from .._core import Measurement, SpiritlevelError
from ..estimators.plan import matrix_layers
from ..estimators.work import Work
from ._registry import Measured


def measured_weights(work: Work, measure: str) -> dict[str, str]:
    """Parameter name of the weight of each layer that acts as a matrix; at least one."""
    by_id = {id(p): name for name, p in work.surface.parameters.items()}
    found = {
        layer: by_id[id(work.surface.module(layer).weight)] for layer in matrix_layers(work.surface)
    }
    if not found:
        raise SpiritlevelError(
            f"The measure {measure!r} needs a trainable linear, convolutional or embedding layer "
            f"among the chosen layers. Got {', '.join(work.surface.layers())}. Choose other "
            "'layers', or measure curvature.trace, which holds for any parameter."
        )
    return found


def largest_layer(name: str, measured: Measured) -> Measurement:
    """The maximum over layers; its sampling error is not that of a mean, so none is claimed."""
    top = max(measured.layers, key=lambda layer: measured.layers[layer].value)
    text = "; ".join(part for part in (f"layer {top!r}", measured.whole.text) if part)
    value = measured.layers[top].value
    return dataclasses.replace(measured.whole, name=name, value=value, data_stderr=None, text=text)
