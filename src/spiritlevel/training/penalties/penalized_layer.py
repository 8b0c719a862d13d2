"""The layer that a penalty is about: found by its path, and observed in the forward pass."""

from __future__ import annotations

from torch import Tensor, nn

from ...errors import SpiritlevelError
from .argument_checks import check_trained
from .forward_recorder import ForwardRecorder


def find_layer(model: nn.Module, layer: str, layer_types: tuple[type[nn.Module], ...]) -> nn.Module:
    """The module at the path `layer`, of one of these types and with a weight that is trained."""
    candidates = {
        path: module for path, module in model.named_modules() if isinstance(module, layer_types)
    }
    if layer not in candidates:
        type_names = " or ".join(layer_type.__name__ for layer_type in layer_types)
        raise SpiritlevelError(
            f"The layer of a penalty must be the path of a {type_names} of the model. "
            f"Got {layer!r}. There are: {', '.join(candidates) or 'none'}."
        )
    check_trained(layer, candidates[layer])
    return candidates[layer]


def take_layer_call(recorder: ForwardRecorder, layer: str) -> tuple[Tensor, Tensor]:
    """Input and output of the layer in the forward pass of this batch."""
    call = recorder.take()
    if call is None or not call.args or not isinstance(call.output, Tensor):
        raise SpiritlevelError(
            f"The penalty saw no forward pass through the layer {layer!r} since it was last "
            "called. Run the model on the batch inside `with penalty.shared_forward():`, outside "
            "torch.no_grad(), and then call the penalty once; or call penalty(x, y), which runs "
            "the model itself."
        )
    return call.args[0], call.output
