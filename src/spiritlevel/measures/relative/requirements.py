"""What relative flatness with a decay term has to be told."""

from __future__ import annotations

from ...engine.workspace import Workspace
from ...ground.errors import SpiritlevelError


def weight_decay(workspace: Workspace, name: str) -> float:
    """λ, which only the optimizer knows."""
    decay = workspace.options.weight_decay
    if decay is None:
        raise SpiritlevelError(
            f"The measure {name!r} needs the weight decay of the training. Got none. Pass what the "
            "optimizer had, such as options={'weight_decay': 5e-4}, or 0 if it had none."
        )
    return float(decay)
