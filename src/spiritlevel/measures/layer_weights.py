"""What the per-layer measures of weight matrices share."""

from __future__ import annotations

import dataclasses
import math

from ..engine.plan import matrix_layers
from ..engine.workspace import Workspace
from ..errors import SpiritlevelError
from ..records import Measurement, Status


def measured_weights(workspace: Workspace, measure: str) -> dict[str, str]:
    """Parameter name of the weight of each layer that acts as a matrix; at least one."""
    by_id = {id(p): name for name, p in workspace.surface.parameters.items()}
    found = {
        layer: by_id[id(workspace.surface.module(layer).weight)]
        for layer in matrix_layers(workspace.surface)
    }
    if not found:
        raise SpiritlevelError(
            f"The measure {measure!r} needs a trainable linear, convolutional or embedding layer "
            f"among the chosen layers. Got {', '.join(workspace.surface.layers())}. Choose other "
            "'layers', or measure curvature.trace, which holds for any parameter."
        )
    return found


def largest_layer(name: str, layers: dict[str, Measurement]) -> Measurement:
    """The maximum over layers; its sampling error is not that of a mean, so none is claimed."""
    top = max(layers, key=lambda layer: layers[layer].value)
    found = layers[top]
    rivals = [m for layer, m in layers.items() if layer != top and _reach(m) > found.value]
    text = "; ".join(part for part in (f"layer {top!r}", found.text) if part)
    found = dataclasses.replace(found, name=name, data_stderr=None, text=text)
    if found.exact and rivals:  # its value is known, but not whether it is the largest
        rival = max(rivals, key=_reach)
        found = dataclasses.replace(
            found,
            exact=False,
            quantity=rival.quantity,
            status=rival.status,
            stderr=rival.stderr,
            residual=rival.residual,
            interval=None if rival.interval is None else (found.value, _reach(rival)),
            text=f"{text}, itself exact; another may be larger: {rival.text}",
        )
    if found.status is Status.OK and found.interval is not None:
        low, high = found.interval
        if high - low > 2 * float(found.settings["rtol"]) * abs(found.value):
            text = f"{found.text.rstrip('.')}; wider than asked for: raise max_passes."
            found = dataclasses.replace(found, status=Status.NOT_CONVERGED, text=text)
    return found


def _reach(m: Measurement) -> float:
    """How large the true value may well be."""
    if m.interval is not None:
        return m.interval[1]
    if m.status is Status.GGN:
        return math.inf  # the Hessian's value is not known at all
    return m.value + (m.residual or 0.0)
