"""Looking inside a network while it runs, without changing it.

A rectifier is found wherever it is called, as a module, a function or a method, because it is
searched for among the operators that torch runs, not among the modules. It is named after the
module whose forward calls it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ..model.exclusive import of_this_thread
from ..model.model_state import ROOT
from ..model.operation_watch import OperationWatch
from ..model.surface import Surface

Note = Callable[[str, int, Tensor], None]  # module path, number of the call, tensor

# Operators that cut off below: the index and name of that argument; None if they always cut at 0.
_LOWER_END = {
    "relu": None,
    "relu6": None,
    "clamp_min": (1, "min"),
    "clamp": (1, "min"),
    "hardtanh": (1, "min_val"),
    "threshold": (2, "value"),
}


def label_of(path: str, call: int) -> str:
    """A module's path, with the number of the call from its second call on."""
    return path if call == 1 else f"{path} ({call})"


@contextlib.contextmanager
def observed(
    surface: Surface, observer: Callable[[], contextlib.AbstractContextManager[object]] | None
) -> Iterator[None]:
    """Enter the observer around every plain call of the model during the block."""
    surface.observer = observer or contextlib.nullcontext
    try:
        yield
    finally:
        surface.observer = contextlib.nullcontext


@contextlib.contextmanager
def watching(surface: Surface, rectified: Note, entered: Note) -> Iterator[None]:
    """Report every rectifier's output and every weight layer's input during the block."""
    paths: list[str] = []  # of the modules whose forward is running
    calls: dict[tuple[str, str], int] = {}
    layers = surface.layers.matrix_rules

    def count(kind: str, path: str) -> int:
        calls[kind, path] = calls.get((kind, path), 0) + 1
        return calls[kind, path]

    def enter(path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        paths.append(path)
        a = args[0] if args else kwargs.get("input")
        if path in layers and isinstance(a, Tensor) and a.is_floating_point():
            entered(path, count("layer", path), a.detach())

    def leave() -> None:
        paths.pop()

    def note(output: Tensor) -> None:
        path = paths[-1] if paths else ROOT
        rectified(path, count("rectifier", path), output)

    handles: list[Any] = []
    fast = torch.backends.mha.get_fastpath_enabled()
    try:
        # the fast path runs a whole layer as one kernel that hides its rectifier
        torch.backends.mha.set_fastpath_enabled(False)
        for name, module in surface.model.named_modules():
            path = name or ROOT
            handles += [
                module.register_forward_pre_hook(
                    of_this_thread(lambda _, args, kwargs, path=path: enter(path, args, kwargs)),
                    with_kwargs=True,
                ),
                module.register_forward_hook(of_this_thread(lambda *_: leave()), always_call=True),
            ]
        with _Rectifiers(note):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for handle in handles:
            handle.remove()


class _Rectifiers(OperationWatch):
    """Sees every operator that runs, and reports the outputs of those that cut off at 0."""

    def __init__(self, note: Callable[[Tensor], None]) -> None:
        super().__init__()
        self._note = note

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        output = func(*args, **(kwargs or {}))
        if _cuts_at_zero(func, args, kwargs or {}) and output.is_floating_point():
            self._note(output.detach())
        return output


def _cuts_at_zero(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    name = func.overloadpacket.__name__.removesuffix("_")
    if func.namespace != "aten" or name not in _LOWER_END:
        return False
    lower_end = _LOWER_END[name]
    if lower_end is None:
        return True
    position, keyword = lower_end
    end = args[position] if len(args) > position else kwargs.get(keyword)
    return isinstance(end, int | float) and end == 0
