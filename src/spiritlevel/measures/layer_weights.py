"""What the per-layer measures of weight matrices share."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

from ..engine.workspace import Workspace
from ..ground.errors import SpiritlevelError
from ..records.measurements import Measurement, Status


def measured_weights(workspace: Workspace, measure: str) -> dict[str, str]:
    """The parameters that act as matrices, by layer or by their own name; at least one."""
    matrices = workspace.surface.matrices
    return _at_least_one(workspace, measure, {row: m.name for row, m in matrices.items()})


def layer_weights(workspace: Workspace, measure: str) -> dict[str, str]:
    """The weights of layers of a known kind, whose inputs and outputs can be seen; at least one."""
    surface = workspace.surface
    weights = {layer: surface.matrices[layer].name for layer in surface.layers.matrix_rules}
    return _at_least_one(workspace, measure, weights)


def _at_least_one(workspace: Workspace, measure: str, weights: dict[str, str]) -> dict[str, str]:
    if not weights:
        chosen = ", ".join(workspace.surface.layers.owned())
        raise SpiritlevelError(
            f"The measure {measure!r} needs a trainable linear, convolutional or embedding layer "
            f"among the chosen layers. Got {chosen}. Choose other "
            "'layers', or measure curvature.trace, which holds for any parameter."
        )
    return weights


def left_out_weights(workspace: Workspace, included: Iterable[str]) -> list[str]:
    """Parameters with a matrix shape that are not among these, in the model's order.

    A shape with a single dimension that is longer than 1 is that of a vector: a class token, say.
    """
    known = set(included)
    return [
        name
        for name, parameter in workspace.surface.parameters.items()
        if name not in known and sum(size > 1 for size in parameter.shape) > 1
    ]


def largest_layer(
    workspace: Workspace, name: str, layers: dict[str, Measurement], for_more: str = ""
) -> Measurement:
    """The maximum over layers; its sampling error is not that of a mean, so none is claimed.

    `for_more` says what makes estimates of single layers more precise.
    """
    top = max(layers, key=lambda layer: layers[layer].value)
    largest = layers[top]
    rivals = [m for layer, m in layers.items() if layer != top and _reach(m) > largest.value]
    text = "; ".join(part for part in (f"layer {top!r}", largest.text) if part)
    largest = dataclasses.replace(largest, name=name, data_stderr=None, text=text)
    if largest.exact and rivals:  # its value is known, but not whether it is the largest
        rival = max(rivals, key=_reach)
        largest = dataclasses.replace(
            largest,
            exact=False,
            quantity=rival.quantity,
            status=rival.status,
            stderr=rival.stderr,
            residual=rival.residual,
            interval=None if rival.interval is None else (largest.value, _reach(rival)),
            text=f"{text}, itself exact; another may be larger: {rival.text}",
        )
    if largest.status is Status.OK and largest.interval is not None:
        low, high = largest.interval
        if high - low > 2 * workspace.precision.rtol * abs(largest.value):
            text = f"{largest.text.rstrip('.')}; wider than 'rtol' asks for: {for_more}."
            largest = dataclasses.replace(largest, status=Status.NOT_CONVERGED, text=text)
    return largest


def _reach(m: Measurement) -> float:
    """How large the true value may well be."""
    if m.interval is not None:
        return m.interval[1]
    if not m.exact and m.residual is None:
        return math.inf  # of another matrix, or with an unknown error
    return m.value + (m.residual or 0.0)
