"""Which weights can be changed where they act, and why others cannot."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from ...model.batches import BatchLocation
from ...model.layer_hooks import recording_uses
from ...model.layers import AbstractMatrixRule
from ..sample_places import SamplePlaces
from ..uses import complete_uses
from ..workspace import Workspace

SAMPLES = 2


def reasons_against(workspace: Workspace, names: Iterable[str]) -> dict[str, str]:
    """By parameter: why its changes cannot be followed to the outputs of layers."""
    surface, routes = workspace.surface, workspace.plan.routes
    reasons = {}
    for name in names:
        if routes[name] == "unused":
            reasons[name] = "the outputs do not depend on it"
        elif routes[name] == "generic":
            reasons[name] = "its uses are not known"
    left = {name: None for name in names if name not in reasons}
    places = SamplePlaces(workspace, left)
    modules = {layer: surface.layers.module(layer) for layer in surface.layers.rules}
    batch = surface.first_samples(SAMPLES)
    with torch.enable_grad(), recording_uses(modules) as recorded:
        outputs, _ = surface.outputs(batch, where=BatchLocation(0))
    try:
        with torch.enable_grad():
            complete_uses(surface, recorded, outputs)
        for use in recorded.uses:
            name = use.names.get("weight", "")
            reason = places.reason_against(use)
            if reason is None and name in left and not isinstance(use.rule, AbstractMatrixRule):
                reason = "it is not used as a matrix"
            if reason is not None:
                reasons.setdefault(name, reason)
    finally:
        recorded.close()
    return reasons
