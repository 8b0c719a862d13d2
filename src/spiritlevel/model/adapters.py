"""Networks with adapters, such as LoRA, as the plain networks that they compute.

An adapter leaves a weight W frozen and adds to it: the layer computes with M = W + s·BA. The loss
depends on W and on the adapter through M alone, so the Hessian block of M is that of the merged
network. Its relative flatness is that of M as well, not of W.

Nothing here imports peft: a model of theirs can only come from code that already did.
"""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn

from ..errors import SpiritlevelError
from .arguments import check_network
from .distributed import unwrapped


def merged(model: nn.Module, *, frozen: bool = False) -> nn.Module:
    """The network that `model` computes, with its active adapters merged into the weights.

    The weights that the adapters change are trainable in it, and so is what was trainable outside
    of adapters: these are measured. All other tensors are those of `model`, without a copy;
    `model` itself stays as it is.

    Args:
        model: a network with adapters that can be merged, as `peft.get_peft_model` makes it.
        frozen: whether all other weights are trainable too, so that the whole network is measured.
    """
    check_network("merged", model)
    model = unwrapped(model)
    if not callable(getattr(model, "merge_and_unload", None)):
        raise SpiritlevelError(
            "The 'model' argument of merged must have adapters that can be merged into its weights "
            f"(a method merge_and_unload, as peft's LoRA has). Got {type(model).__name__}. A plain "
            "network is measured as it is; prompts and prefixes change no weight."
        )
    network = _sharing_copy(model)
    changed = _adapted_weights(network)
    before = {id(p): p for p in network.parameters()}
    # safe_merge: a weight that would not be finite is refused by peft
    network = network.merge_and_unload(safe_merge=True)
    for parameter in network.parameters():
        is_new = id(parameter) not in before
        if parameter.is_floating_point() and (frozen or is_new or id(parameter) in changed):
            parameter.requires_grad_(True)
    return network


def _adapted_layers(model: nn.Module) -> list[Any]:
    """The layers with an adapter: they keep the layer that they replace as `base_layer`."""
    return [module for module in model.modules() if hasattr(module, "base_layer")]


def _adapted_weights(model: nn.Module) -> dict[int, Tensor]:
    """The weights below the adapters, by id."""
    weights = [getattr(layer.base_layer, "weight", None) for layer in _adapted_layers(model)]
    return {id(weight): weight for weight in weights if weight is not None}


def _sharing_copy(model: nn.Module) -> Any:
    """A copy with the same tensors, but for those of the layers that merging changes.

    Every parameter is an object of its own, so that the copy may be trainable where the model is
    not.
    """
    own = {id(t) for layer in _adapted_layers(model) for t in layer.parameters()}
    memo: dict[int, Any] = {id(b): b for b in model.buffers()}
    for parameter in model.parameters():
        if id(parameter) not in own:
            view = nn.Parameter(parameter.detach(), requires_grad=parameter.requires_grad)
            memo[id(parameter)] = view
    return copy.deepcopy(model, memo)
