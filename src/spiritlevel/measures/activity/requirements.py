"""What the activity of a network asks of it before it can be measured."""

from __future__ import annotations

from ...engine.workspace import Workspace
from ...errors import SpiritlevelError


def rectifier(workspace: Workspace, name: str) -> None:
    """Something that cuts off at 0."""
    if not workspace.activation_sites.rectifiers:
        raise SpiritlevelError(
            f"The measure {name!r} needs a network with rectifiers: nn.ReLU, F.relu, ReLU6, "
            "clamp(min=0) or the like, whose outputs are exactly 0. The network runs none. Other "
            "activations have no dead outputs; measure activity.activation_norm instead."
        )


def layer_inputs(workspace: Workspace, name: str) -> None:
    """A measured layer that takes numbers in."""
    if not workspace.activation_sites.layers:
        raise SpiritlevelError(
            f"The measure {name!r} needs a trainable linear or convolutional layer that the model "
            f"calls, among the chosen layers. Got {', '.join(workspace.surface.layers())}. "
            "Choose other "
            "'layers'."
        )
