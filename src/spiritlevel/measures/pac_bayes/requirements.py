"""What the search for σ asks of a loss."""

from __future__ import annotations

from ...engine.workspace import Workspace
from ...errors import SpiritlevelError
from ...model.losses import CrossEntropy


def target(workspace: Workspace, name: str) -> None:
    """A loss with classes, where the error is what may rise."""
    loss = workspace.surface.loss
    if workspace.options.target == "error" and not isinstance(loss, CrossEntropy):
        raise SpiritlevelError(
            f"The measure {name!r} with the option target='error' needs the loss 'cross_entropy', "
            f"which has classes to miss. Got {loss.name!r}. Use target='loss', or 'auto'."
        )
