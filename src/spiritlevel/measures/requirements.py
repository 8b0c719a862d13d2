"""What a network or its loss needs so that measures of several families can be computed.

A requirement is a function of the workspace and the measure's name that raises with what was
needed, what came and what to do. If the measure was asked for by name, that is the error; if it
only matched a pattern, it is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..engine.workspace import Workspace
from ..ground.errors import SpiritlevelError, brief
from ..model.losses import CrossEntropy

Requirement = Callable[[Workspace, str], object]


def softmax(workspace: Workspace, name: str) -> None:
    """The loss has class probabilities."""
    loss = workspace.surface.loss
    if not isinstance(loss, CrossEntropy):
        raise SpiritlevelError(
            f"The measure {name!r} needs the loss 'cross_entropy'. Got {brief(loss.name)}. "
            "Leave it out of 'measures'."
        )


def head(workspace: Workspace, name: str) -> None:
    """The network ends in a linear layer."""
    _ = workspace.head


def inputs(workspace: Workspace, name: str) -> None:
    """Every input of a measured layer goes through its module."""
    if unseen := workspace.features.unseen_layers:
        raise SpiritlevelError(
            f"The measure {name!r} needs every input of a layer. The weight of "
            f"{', '.join(unseen)} is also used outside its module (tied to another layer, or read "
            "by other code). Choose other 'layers', or measure relative.kappa, which does not need "
            "the inputs."
        )


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
