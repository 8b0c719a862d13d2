"""What goes into a module and comes out of it, taken from the forward pass of the training loss."""

from __future__ import annotations

from types import TracebackType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ...ground.errors import SpiritlevelError, brief
from ...model.autograd_graph import inside_transform, parameter_uses
from .argument_checks import check_trained


class ForwardCall(NamedTuple):
    """One call of a module, with its graph."""

    args: tuple[Any, ...]
    output: Any


class ForwardRecorder:
    """Keeps the latest calls of a module that recorded a graph, until they are taken or replaced.

    `with recorder:` records the calls in the block; the hooks are removed at its end. It is a class
    because a generator takes several times as long to enter, which shows in the steps of a small
    network.
    """

    def __init__(
        self, module: nn.Module, *, separate_input: bool = False, every_call: bool = False
    ) -> None:
        """With `separate_input` the input is an alias that no other module uses.

        A derivative in it then goes through this module alone. With `every_call` all calls in the
        block are kept, otherwise the last one.
        """
        self._module, self._separate_input = module, separate_input
        self._every_call = every_call
        self._latest: list[ForwardCall] = []
        self._handles: list[Any] = []

    def __enter__(self) -> None:
        self._latest = []
        self._handles.append(self._module.register_forward_hook(self._after, prepend=True))
        if self._separate_input:
            self._handles.append(self._module.register_forward_pre_hook(self._before))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        if error is not None:
            self._latest = []  # nobody will ask for them, and they hold a graph

    def take(self) -> ForwardCall | None:
        """The latest call, once; None if there was none since the last time."""
        latest = self.take_all()
        return latest[-1] if latest else None

    def take_all(self) -> list[ForwardCall]:
        """The calls since the last time, once."""
        latest, self._latest = self._latest, []
        return latest

    def __getstate__(self) -> dict[str, Any]:
        """A copy does not contain the graph."""
        return self.__dict__ | {"_latest": [], "_handles": []}

    def _before(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if not _records_graph() or not args or not isinstance(args[0], Tensor):
            return None
        a = args[0]
        alias = a.view_as(a) if a.requires_grad else a.detach().requires_grad_()
        return (alias, *args[1:])

    def _after(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if _records_graph():
            before = self._latest if self._every_call else []
            self._latest = [*before, ForwardCall(args, output)]


def _records_graph() -> bool:
    """Whether this forward pass records a graph: not in an evaluation, nor inside torch.func."""
    return torch.is_grad_enabled() and not inside_transform()


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
