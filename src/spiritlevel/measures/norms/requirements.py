"""What a network and its data need so that norms and margins can be measured."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...engine.workspace import Workspace
from ...errors import SpiritlevelError, brief
from ...model.batches import BatchLocation
from ...model.distributed import unwrapped
from ...model.losses import CrossEntropy


def class_targets(workspace: Workspace, name: str) -> None:
    """The loss is a cross-entropy, and its targets are class numbers."""
    loss = workspace.surface.loss
    if not isinstance(loss, CrossEntropy):
        raise SpiritlevelError(
            f"The measure {name!r} needs the loss 'cross_entropy' with class numbers as targets. "
            f"Got {brief(loss.name)}. Leave it out of 'measures'."
        )
    if "target type" not in workspace.cache:
        with torch.no_grad():
            _, targets = workspace.surface.outputs(
                workspace.surface.first_samples(1), where=BatchLocation(0)
            )
        workspace.cache["target type"] = targets.dtype
    if workspace.cache["target type"].is_floating_point:
        raise SpiritlevelError(
            f"The measure {name!r} needs class numbers as targets: a margin is that of one class. "
            f"Got probabilities ({workspace.cache['target type']}). Pass y.argmax(dim=1) as "
            "targets if the largest one is the class."
        )


def initial(workspace: Workspace, name: str) -> dict[str, Tensor]:
    """The measured parameters before training, in float64."""
    given = workspace.options.initial
    if given is None:
        raise SpiritlevelError(
            f"The measure {name!r} needs the weights from before training. Pass "
            "options={'initial': model_or_state_dict}, for example a copy.deepcopy(model) made "
            "before the first step."
        )
    state: dict[str, Tensor] = {}
    if isinstance(given, nn.Module):
        state.update(unwrapped(given).named_parameters(remove_duplicate=False))
    else:
        state.update(given)
    tied = workspace.surface.layers.tied
    return {
        key: _initial_value(state, key, tied.get(key), parameter, name)
        for key, parameter in workspace.surface.parameters.items()
    }


def _initial_value(
    state: dict[str, Tensor], key: str, other: str | None, parameter: Tensor, name: str
) -> Tensor:
    value = state.get(key) if other is None else state.get(key, state.get(other))
    if value is None:
        names = ", ".join(list(state)[:4]) or "nothing"
        raise SpiritlevelError(
            f"The option 'initial' must hold every measured parameter for the measure {name!r}. "
            f"{key!r} is missing; it holds {names}{', …' if len(state) > 4 else ''}. Pass the same "
            "network from before training, or its state_dict under the same names."
        )
    if value.shape != parameter.shape:
        raise SpiritlevelError(
            f"The option 'initial' must hold parameters of the network's shapes for the measure "
            f"{name!r}. {key!r} has shape {tuple(value.shape)} there and {tuple(parameter.shape)} "
            "in the network. Pass the same network from before training."
        )
    if not bool(torch.isfinite(value).all()):
        raise SpiritlevelError(
            f"The option 'initial' must be finite for the measure {name!r}. {key!r} holds NaN or "
            "infinity. Load another copy of the weights from before training."
        )
    return value.detach().to(parameter.device, torch.float64)
