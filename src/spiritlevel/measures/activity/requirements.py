"""What a network needs so that its activity can be measured."""

from __future__ import annotations

from ...engine.workspace import Workspace
from ...errors import SpiritlevelError


def rectifier(workspace: Workspace, name: str) -> None:
    """A network with an activation that is exactly 0 for some inputs."""
    if not workspace.activation_sites.rectifiers:
        raise SpiritlevelError(
            f"The measure {name!r} needs a network with rectifiers: nn.ReLU, F.relu, ReLU6, "
            "clamp(min=0) or the like, whose outputs are exactly 0. The network has none. Other "
            "activations have no dead outputs; measure activity.activation_norm instead."
        )


def layer_inputs(workspace: Workspace, name: str) -> None:
    """A measured layer whose inputs are numbers, not token indices."""
    if not workspace.activation_sites.layers:
        raise SpiritlevelError(
            f"The measure {name!r} needs a trainable linear or convolutional layer that the model "
            f"calls, among the chosen layers. Got {', '.join(workspace.surface.layers.owned())}. "
            "Choose other 'layers'."
        )
