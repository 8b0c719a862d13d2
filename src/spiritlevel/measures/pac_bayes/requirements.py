"""What a loss needs so that σ can be searched for."""

from __future__ import annotations

from ...engine.workspace import Workspace
from ...ground.errors import SpiritlevelError, brief
from ...model.losses import CrossEntropy


def target(workspace: Workspace, name: str) -> None:
    """Class predictions, if the search is for a rise of the error."""
    loss = workspace.surface.loss
    if workspace.options.target == "error" and not isinstance(loss, CrossEntropy):
        raise SpiritlevelError(
            f"The measure {name!r} with the option target='error' needs the loss 'cross_entropy', "
            f"which has classes to miss. Got {brief(loss.name)}. Use target='loss', or 'auto'."
        )
