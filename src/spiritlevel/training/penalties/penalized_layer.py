"""The layer that a penalty is about: found by its path, and observed in the forward pass."""

from __future__ import annotations

from torch import Tensor, nn

from ...ground.errors import SpiritlevelError, brief
from ...model.autograd_graph import parameter_uses
from .argument_checks import check_trained
from .forward_recorder import ForwardRecorder


def find_layer(model: nn.Module, layer: str, layer_types: tuple[type[nn.Module], ...]) -> nn.Module:
    """The module at the path `layer`, of one of these types and with a weight that is trained."""
    candidates = {
        path: module for path, module in model.named_modules() if isinstance(module, layer_types)
    }
    if not isinstance(layer, str) or layer not in candidates:
        type_names = " or ".join(layer_type.__name__ for layer_type in layer_types)
        raise SpiritlevelError(
            f"The layer of a penalty must be the path of a {type_names} of the model. "
            f"Got {brief(layer)}. There are: {', '.join(candidates) or 'none'}."
        )
    check_trained(layer, candidates[layer])
    return candidates[layer]


def take_layer_calls(recorder: ForwardRecorder, layer: str) -> list[tuple[Tensor, Tensor]]:
    """Input and output of every call of the layer in the forward pass of this batch."""
    calls = recorder.take_all()
    if not calls or any(not call.args or not isinstance(call.output, Tensor) for call in calls):
        raise SpiritlevelError(
            f"The penalty saw no forward pass through the layer {layer!r} since it was last "
            "called. Run the model on the batch inside `with penalty.shared_forward():`, outside "
            "torch.no_grad(), and then call the penalty once; or call penalty(x, y), which runs "
            "the model itself."
        )
    return [(call.args[0], call.output) for call in calls]


def check_uses(layer: str, module: nn.Module, num_calls: int, outputs: Tensor) -> None:
    """Refuse a weight that the outputs also depend on other than by calls of the layer."""
    weight = module.weight
    assert isinstance(weight, Tensor)
    num_uses = parameter_uses(outputs).get(id(weight), 0)
    if num_uses > num_calls:
        raise SpiritlevelError(
            f"The weight of the layer {layer!r} must be used by that layer alone. Got "
            f"{num_uses} uses in the forward pass, of which {num_calls} are calls of the layer: it "
            "is tied to another layer, or a function uses it. Choose a layer whose weight is not "
            "shared, or FlatnessPenalty, which counts all uses."
        )
