"""All uses of the measured parameters in one run of the model.

Hooks record the calls of layers of a known kind. Where the graph reads a parameter more often than
these calls explain, its uses are read off the graph instead: a subclass with a forward of its own,
a functional call, a part of a packed matrix, a bare parameter.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.autograd.graph import GradientEdge

from ..model.autograd_graph import nodes, parameter_uses
from ..model.layer_hooks import LayerUse, LayerUses
from ..model.operations import find_operations
from ..model.surface import Surface


def name_uses(surface: Surface, uses: Sequence[LayerUse]) -> None:
    """Say of every recorded call which rule it follows and which measured parameters it uses."""
    for use in uses:
        if use.is_operation:
            continue
        use.rule = surface.layers.rules[use.layer]
        use.names = {
            key: name
            for key, name in surface.layers.measured_names(use.layer).items()
            if id(surface.parameters[name]) in use.parameters  # not replaced during the call
        }


def complete_uses(surface: Surface, recorded: LayerUses, outputs: Tensor) -> None:
    """Name the recorded calls, and add the operations of parameters that they do not explain."""
    name_uses(surface, recorded.uses)
    _forget_overwritten(recorded.uses, outputs)
    counts = parameter_uses(outputs)
    calls = calls_by_parameter(recorded.uses)
    missing = {
        name: parameter
        for name, parameter in surface.parameters.items()
        if counts.get(id(parameter), 0) > calls.get(name, 0)
    }
    if not missing:
        return
    operations = find_operations(outputs, missing)
    for use in recorded.uses:
        use.names = {k: name for k, name in use.names.items() if name not in operations.explained}
    for operation in operations.found:
        first = operation.operands.get("weight") or operation.operands["bias"]
        recorded.add(surface.layers.row_of(first.name), operation)


def _forget_overwritten(uses: Sequence[LayerUse], outputs: Tensor) -> None:
    """Drop the edges that no backward from the outputs goes through.

    An output that is a view, as that of a linear layer with positions is, gets another edge where
    it is written in place. No gradient would arrive at the old one, and the use would count as 0.
    """
    reached = set(nodes(outputs))
    for use in uses:
        if use.edge is not None and use.edge.node not in reached:
            use.edge = None


def calls_by_parameter(uses: Sequence[LayerUse]) -> dict[str, int]:
    """How many of the uses that autograd sees read each parameter."""
    calls: dict[str, int] = {}
    for use in uses:
        if use.edge is None:
            continue  # computed without a graph: a use that autograd does not see either
        for name in use.names.values():
            calls[name] = calls.get(name, 0) + 1
    return calls


def pull(
    surface: Surface,
    root: Tensor | GradientEdge,
    cotangent: Tensor,
    deep: list[GradientEdge],
    uses: Sequence[LayerUse],
    num_samples: int | None = None,
) -> None:
    """Pull a cotangent back to the deepest uses; all uses hear of their gradients.

    A node that a backward ends at is not run, so a hook of its own would not be called.
    """
    gradients = surface.pull(root, cotangent, deep, num_samples)
    ends = {edge.node: gradient for edge, gradient in zip(deep, gradients, strict=True)}
    for use in uses:
        if use.is_operation and use.on_output is not None and use.edge is not None:
            gradient = ends.get(use.edge.node)
            if gradient is not None:
                use.on_output(gradient)
