"""Models whose weights are divided among processes by FSDP2 (`fully_shard`).

A measurement needs whole weights: their norms, products with them, directions in their space. So
they are gathered for the time of a call, as the model itself does layer by layer, and divided again
afterwards. Every process then holds the whole model, though neither its gradients nor the state of
an optimizer. The hooks that gather and divide around each layer rest meanwhile: they would be parts
of the graph of which nothing is known.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import nn

_HOOKS = (
    *("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs", "_forward_hooks"),
    *("_forward_hooks_with_kwargs", "_forward_hooks_always_called"),
)


@contextlib.contextmanager
def gathered(model: nn.Module) -> Iterator[None]:
    """Whole weights in every process during the block, if the model is sharded by FSDP2."""
    sharded: list[Any] = [module for module in model.modules() if _is_sharded(module)]
    if not sharded or not any(type(p).__name__ == "DTensor" for p in model.parameters()):
        yield
        return
    with contextlib.ExitStack() as stack:
        for module in sharded:
            module.unshard()
            stack.callback(module.reshard)
            _rest(module, stack)
        yield


def _is_sharded(module: nn.Module) -> bool:
    """By its base class, which `fully_shard` adds; without importing torch.distributed."""
    return any(kind.__name__ == "FSDPModule" for kind in type(module).__mro__)


def _rest(module: nn.Module, stack: contextlib.ExitStack) -> None:
    """Take the hooks of FSDP off a module until the stack is closed."""
    for table in _HOOKS:
        stack.callback(setattr, module, table, getattr(module, table).copy())
    for hooks in (module._forward_pre_hooks, module._forward_hooks):
        for key, hook in list(hooks.items()):
            if type(getattr(hook, "__self__", None)).__name__ == "FSDPState":
                del hooks[key]
