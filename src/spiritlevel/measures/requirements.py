"""What measures of several families ask of a network or its loss before they can be computed.

A requirement is a function of the workspace and the measure's name that raises with what was
needed, what came and what to do. A measure that was asked for by name is refused with that text,
one that only matched a pattern is left out.
"""

from __future__ import annotations

from collections.abc import Callable

from ..engine.workspace import Workspace
from ..errors import SpiritlevelError
from ..model.losses import CrossEntropy

Requirement = Callable[[Workspace, str], object]


def softmax(workspace: Workspace, name: str) -> None:
    """A loss with class probabilities."""
    loss = workspace.surface.loss
    if not isinstance(loss, CrossEntropy):
        raise SpiritlevelError(
            f"The measure {name!r} needs the loss 'cross_entropy'. Got {loss.name!r}. "
            "Leave it out of 'measures'."
        )


def head(workspace: Workspace, name: str) -> None:
    """A last linear map."""
    _ = workspace.head


def inputs(workspace: Workspace, name: str) -> None:
    """Layers whose every input goes through their own module."""
    if unseen := workspace.unseen_layers:
        raise SpiritlevelError(
            f"The measure {name!r} needs to see every input of a layer. The weight of "
            f"{', '.join(unseen)} is also used past its module (tied to another layer, or read by "
            "other code). Choose other 'layers', or measure relative.kappa, which needs no inputs."
        )
