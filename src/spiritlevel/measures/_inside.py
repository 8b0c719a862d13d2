"""What the norms and the activity of a network ask of it before they can be computed."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .._core import SpiritlevelError
from ..estimators.work import Work
from ..losses import CrossEntropy
from ..processes import unwrapped
from ..surface import Place


def rectifier(work: Work, name: str) -> None:
    """Something that cuts off at 0."""
    if not work.places.rectifiers:
        raise SpiritlevelError(
            f"The measure {name!r} needs a network with rectifiers: nn.ReLU, F.relu, ReLU6, "
            "clamp(min=0) or the like, whose outputs are exactly 0. The network runs none. Other "
            "activations have no dead outputs; measure activity.activation_norm instead."
        )


def layer_inputs(work: Work, name: str) -> None:
    """A measured layer that takes numbers in."""
    if not work.places.layers:
        raise SpiritlevelError(
            f"The measure {name!r} needs a trainable linear or convolutional layer that the model "
            f"calls, among the chosen layers. Got {', '.join(work.surface.layers())}. Choose other "
            "'layers'."
        )


def class_targets(work: Work, name: str) -> None:
    """Targets that are class numbers."""
    loss = work.surface.loss
    if not isinstance(loss, CrossEntropy):
        raise SpiritlevelError(
            f"The measure {name!r} needs the loss 'cross_entropy' with class numbers as targets. "
            f"Got {loss.name!r}. Leave it out of 'measures'."
        )
    if "target type" not in work.cache:
        with torch.no_grad():
            _, targets = work.surface.outputs(work.surface.first_samples(1), where=Place(0))
        work.cache["target type"] = targets.dtype
    if work.cache["target type"].is_floating_point:
        raise SpiritlevelError(
            f"The measure {name!r} needs class numbers as targets: a margin is that of one class. "
            f"Got probabilities ({work.cache['target type']}). Pass y.argmax(dim=1) as targets if "
            "the largest is the class that is meant."
        )


def initial(work: Work, name: str) -> dict[str, Tensor]:
    """The measured parameters before training, in float64."""
    given = work.options.initial
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
    tied = work.surface.tied
    return {
        key: _initial_value(state, key, tied.get(key), parameter, name)
        for key, parameter in work.surface.parameters.items()
    }


def _initial_value(
    state: dict[str, Tensor], key: str, other: str | None, parameter: Tensor, name: str
) -> Tensor:
    value = state.get(key) if other is None else state.get(key, state.get(other))
    if value is None:
        known = ", ".join(list(state)[:4]) or "nothing"
        raise SpiritlevelError(
            f"The option 'initial' must hold every measured parameter for the measure {name!r}. "
            f"{key!r} is missing; it holds {known}{', …' if len(state) > 4 else ''}. Pass the same "
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
