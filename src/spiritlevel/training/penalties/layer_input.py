"""What goes into a layer and comes out of it, taken from the training loss's own forward."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import SpiritlevelError


@dataclasses.dataclass(frozen=True)
class Passed:
    """One call of a layer, with its graph."""

    input: Tensor
    output: Tensor


class LayerTap:
    """Keeps the latest call of a layer that recorded a graph, until it is taken or replaced."""

    def __init__(self, layer: str, module: nn.Module, *, differentiable: bool = False) -> None:
        """Listens from now on; a `differentiable` input is an alias that only this layer sees."""
        self._layer = layer
        self._latest: Passed | None = None
        self._handles: list[Any] = [module.register_forward_hook(self._after, prepend=True)]
        if differentiable:
            self._handles.append(module.register_forward_pre_hook(self._before))

    def take(self) -> Passed:
        """The latest call, once."""
        latest, self._latest = self._latest, None
        if latest is None:
            raise SpiritlevelError(
                f"The penalty found no forward through the layer {self._layer!r} since it was last "
                "called. Run the model on the batch first, outside torch.no_grad(), and then call "
                "penalty(outputs, targets) once."
            )
        return latest

    def remove(self) -> None:
        """Stop listening."""
        for handle in self._handles:
            handle.remove()
        self._latest = None

    def __getstate__(self) -> dict[str, Any]:
        """A copy of the model, or the model in a file, does not take the graph along."""
        return {"_layer": self._layer, "_latest": None, "_handles": []}

    def _before(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if not _training() or not args or not isinstance(args[0], Tensor):
            return None
        a = args[0]
        alias = a.view_as(a) if a.requires_grad else a.detach().requires_grad_()
        return (alias, *args[1:])

    def _after(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if _training() and args and isinstance(output, Tensor):
            self._latest = Passed(args[0], output)


def _training() -> bool:
    """Whether this forward records a graph: not in an evaluation, nor inside of torch.func."""
    transformed = torch._C._functorch.peek_interpreter_stack() is not None
    return torch.is_grad_enabled() and not transformed
