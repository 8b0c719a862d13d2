"""What a network or its loss needs so that measures of several families can be computed.

A requirement is a function of the workspace and the measure's name that raises with what was
needed, what came and what to do. If the measure was asked for by name, that is the error; if it
only matched a pattern, it is left out.
"""

from __future__ import annotations

from collections.abc import Callable

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
